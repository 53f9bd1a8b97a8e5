import asyncio
import time
from dataclasses import replace

import pytest

from discovery import Instance, InstanceRemovedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Column
from epp.scraping.schedule import ScrapeIntervals
from tests.epp.scraping.paged_worker import (
    IDLE,
    IMPATIENT,
    RULES,
    Worker,
    add,
    age,
    scraping,
    serving,
    waiting,
)
from tests.eventually import eventually


def late(store: Datastore) -> list[bool]:
    found = store.pool(time.monotonic()).late()
    return [] if found is None else found.tolist()


def due(store: Datastore) -> float:
    """When the page of the first endpoint is late."""
    return float(store.pool(0.0).numbers[Column.LATE_AT, 0])


async def test_a_worker_that_was_stopped_answers_the_request_that_it_holds() -> None:
    """Further requests are seldom, and more seldom each time."""
    worker, store, failures = Worker(), Datastore(), list[str]()
    worker.stopped = asyncio.Event()
    rules = replace(IMPATIENT, intervals=ScrapeIntervals(interval=0.01, idle_interval=0.01, backoff=3600.0))
    async with serving(worker), scraping(store, rules, on_error=lambda _, reason: failures.append(reason)):
        add(store, worker)
        await eventually(lambda: len(failures) >= 7)
        assert set(failures) == {"no complete answer within 0.2 s"}
        assert worker.asked <= 3, "what is given up stays in the queue of the stopped process"
        worker.stopped.set()
        await eventually(lambda: waiting(store) == [1])


async def test_who_does_not_answer_is_late_until_it_does_or_nothing_is_scraped() -> None:
    worker, other, store = Worker(), Worker(), Datastore()
    async with serving(worker, other), scraping(store) as scraper:
        add(store, worker)
        add(store, other, "w2")
        await eventually(lambda: age(store) < 1 and other.asked > 3)
        for ends in (lambda: worker.stopped.set(), lambda: scraper.reconfigure(None, None)):
            worker.stopped = asyncio.Event()
            await eventually(lambda: late(store) == [True, False])
            ends()
            await eventually(lambda: late(store) == [])


async def test_who_is_asked_again_stays_as_late_as_it_was() -> None:
    worker, store = Worker(), Datastore()
    async with serving(worker), scraping(store, IMPATIENT):
        add(store, worker)
        await eventually(lambda: worker.asked > 3)
        worker.stopped = asyncio.Event()
        await eventually(lambda: worker.held)  # from now on no page comes
        since, asked = due(store), worker.asked
        await eventually(lambda: worker.asked > asked)
        assert due(store) == since


async def test_a_request_that_may_be_lost_is_sent_again_at_once() -> None:
    """By the schedule it would be an hour later."""
    worker, store = Worker(), Datastore()
    worker.stopped = asyncio.Event()
    async with serving(worker), scraping(store, replace(IMPATIENT, intervals=ScrapeIntervals.fixed(3600.0))):
        add(store, worker)
        await eventually(lambda: worker.asked >= 2)


async def test_a_sign_of_loss_ends_the_wait_for_an_overdue_answer() -> None:
    worker, store, failures = Worker(), Datastore(), list[str]()
    worker.stopped = asyncio.Event()
    slow = replace(IMPATIENT, timeout=1.0)
    async with serving(worker), scraping(store, slow, on_error=lambda _, reason: failures.append(reason)):
        add(store, worker)
        await eventually(lambda: len(failures) == 1)
        store.suspect(store.endpoints[0])
        assert store.is_lost(store.endpoints[0]), "somebody finds out"
        await eventually(lambda: not store.is_lost(store.endpoints[0]))  # it accepts connections


async def test_who_seems_to_be_lost_is_not_waited_for() -> None:
    worker, store, failures = Worker(), Datastore(), list[str]()
    worker.stopped = asyncio.Event()
    async with serving(worker):
        add(store, worker)
        store.set_lost(store.endpoints[0], lost=True)
        async with scraping(store, IMPATIENT, on_error=lambda _, reason: failures.append(reason)):
            await eventually(lambda: not store.is_lost(store.endpoints[0]))
            assert len(failures) == 1, "the first overdue answer is the last"


async def test_nobody_finds_out_about_a_worker_that_is_gone() -> None:
    worker, store, failures = Worker(), Datastore(), list[str]()
    worker.stopped = asyncio.Event()
    async with (
        serving(worker),
        scraping(store, IMPATIENT, on_error=lambda _, reason: failures.append(reason)),
    ):
        add(store, worker)
        await eventually(lambda: len(failures) > 0)
        store.apply(InstanceRemovedEvent(Instance("w1", "ns", "c", "127.0.0.1", worker.port, "a"), "deleted"))
        await eventually(lambda: store.on_suspect == {})


async def test_who_answers_with_an_error_is_expected_when_it_is_asked_again() -> None:
    worker, store, failures = Worker(), Datastore(), list[str]()
    rules = replace(RULES, intervals=ScrapeIntervals(interval=0.01, idle_interval=0.01, backoff=3600.0))
    async with serving(worker), scraping(store, rules, on_error=lambda _, reason: failures.append(reason)):
        add(store, worker)
        await eventually(lambda: age(store) < 1)
        worker.status = 500
        await eventually(lambda: len(failures) > 6)  # so it is asked in a second or later
        await eventually(lambda: due(store) > time.monotonic() + 1.0)
        between = due(store)
        worker.stopped = asyncio.Event()
        await eventually(lambda: worker.held)
        assert due(store) != between, "the next page has a time of its own"


@pytest.mark.parametrize("page", [b"", b"what_no_engine_says 1\n"], ids=["status 500", "no known series"])
async def test_who_answers_with_an_error_is_late_only_once_it_is_silent(page: bytes) -> None:
    worker, other, store = Worker(), Worker(), Datastore()
    failures = list[str]()

    async with serving(worker, other), scraping(store, on_error=lambda one, _: failures.append(one.id)):
        add(store, worker)
        add(store, other, "w2")
        await eventually(lambda: age(store) < 1 and other.asked > 3)
        worker.status, worker.page = (200 if page else 500), page
        await eventually(lambda: failures.count("w1") > 10)
        await eventually(lambda: late(store) == [])
        worker.stopped = asyncio.Event()
        await eventually(lambda: late(store) == [True, False])


async def test_nobody_is_late_before_it_is_asked() -> None:
    worker, store = Worker(), Datastore()
    worker.page = IDLE
    seldom = replace(RULES, intervals=ScrapeIntervals(interval=300.0, idle_interval=600.0, linger=0.0))

    async with serving(worker), scraping(store, seldom):
        add(store, worker)
        await eventually(lambda: len(store.on_use) == 1)
        before = due(store)
        store.reserve(store.endpoints[0])
        await asyncio.sleep(0.1)
        assert (worker.asked, due(store)) == (1, before)


async def test_a_page_elsewhere_ends_the_wait_for_the_one_that_is_late() -> None:
    stopped, other, moved, store = Worker(), Worker(), Worker(), Datastore()
    async with serving(stopped, other, moved), scraping(store):
        add(store, stopped)
        add(store, other, "w2")
        await eventually(lambda: age(store) < 1 and other.asked > 3)
        stopped.stopped = asyncio.Event()
        await eventually(lambda: late(store) == [True, False])
        add(store, stopped, document={"transport": {"http": {"metrics_port": moved.port}}})
        await eventually(lambda: late(store) == [] and moved.asked > 3)
