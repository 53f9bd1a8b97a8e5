import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from discovery import (
    Instance,
    InstanceAddedEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    SourceDiscovery,
)
from discovery.memory import MemoryStore
from discovery.metadata.document import may_name, serving_port
from discovery.metadata.schedule import FetchSchedule
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, hang, serving
from tests.free_port import free_port


class Holding:
    """A handler that answers conditional and held GETs as the contract wants, and counts them."""

    def __init__(self) -> None:
        self.count = 1
        self.changed = asyncio.Event()
        self.held = self.most = 0

    def change(self) -> None:
        self.count += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.Response:
        etag = f'"one.e.{self.count}"'
        if request.headers.get("If-None-Match") == etag:
            if "Prefer" not in request.headers:
                return web.Response(status=304, headers={"ETag": etag})
            self.held += 1
            self.most = max(self.most, self.held)
            try:
                async with asyncio.timeout(1.0):
                    await self.changed.wait()
            except TimeoutError:
                return web.Response(status=304, headers={"ETag": etag, "Preference-Applied": "wait=1"})
            finally:
                self.held -= 1
            etag = f'"one.e.{self.count}"'
        applied = {"Preference-Applied": "wait=1"} if "Prefer" in request.headers else {}
        return web.json_response({"count": self.count}, headers={"ETag": etag} | applied)


async def test_an_instance_is_added_with_its_document_and_changes_are_pushed(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.handler = holding = Holding()
    store.put(worker.instance())
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        added = await anext(stream)
        assert isinstance(added, InstanceAddedEvent)
        assert added.instance.revision == "one.e.1"
        assert await added.instance.metadata() == {"count": 1}
        await eventually(lambda: len(worker.requests) >= 2)  # the second one is held
        holding.change()
        updated = await anext(stream)
        assert isinstance(updated, InstanceUpdatedEvent)
        assert (updated.old.revision, updated.new.revision) == ("one.e.1", "one.e.2")
        assert await updated.new.metadata() == {"count": 2}
        asked = worker.requests[1:]
        assert all("Prefer" in request.headers for request in asked), (
            "it is pushed, and metadata() asks nobody"
        )


async def test_changes_in_quick_succession_still_arrive_at_once(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.handler = holding = Holding()
    store.put(worker.instance())
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        await anext(stream)
        for count in range(2, 8):
            holding.change()
            event = await anext(stream)
            assert isinstance(event, InstanceUpdatedEvent)
            assert event.new.revision == f"one.e.{count}"
        assert all("Prefer" in request.headers for request in worker.requests[1:]), "held, not polled"


async def test_a_reset_turns_reachable_false_and_the_next_answer_clears_it(
    store: MemoryStore, discovering: SourceDiscovery
) -> None:
    """Without the reset it would be noticed after a minute."""
    worker = FakeWorker()
    worker.handler = Holding()
    worker.port = free_port()
    async with serving(worker):
        store.put(worker.instance())
        stream = discovering.watch("prod", "decode", metadata=True)
        await stream.__aenter__()
        assert (await anext(stream)).instance.reachable
        await eventually(lambda: len(worker.requests) >= 2)
    async with asyncio.timeout(45):
        lost = await anext(stream)
    assert isinstance(lost, InstanceUpdatedEvent)
    assert not lost.new.reachable
    async with serving(worker), asyncio.timeout(90):
        back = await anext(stream)
        assert isinstance(back, InstanceUpdatedEvent)
        assert back.new.reachable
    await stream.aclose()


async def test_silence_longer_than_the_wait_turns_reachable_false_and_removes_nothing(
    store: MemoryStore, impatient: SourceDiscovery, worker: FakeWorker
) -> None:
    holding = worker.handler = Holding()
    store.put(worker.instance())
    async with impatient.watch("prod", "decode", metadata=True) as stream, asyncio.timeout(90):
        await anext(stream)
        worker.handler = hang
        while (lost := await anext(stream)).instance.reachable:
            pass  # this machine was silent itself for a while, and the worker is back
        assert isinstance(lost, InstanceUpdatedEvent)
        worker.handler = holding
        while not (back := await anext(stream)).instance.reachable:
            pass
        assert isinstance(back, InstanceUpdatedEvent)


async def test_the_status_header_is_a_hint(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.headers = {"Instance-Status": "draining"}
    store.put(worker.instance())
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        added = await anext(stream)
        assert isinstance(added, InstanceAddedEvent)
        assert not added.instance.reachable


async def test_a_plain_server_is_polled(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    store.put(worker.instance())
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        await anext(stream)
        worker.body = b'{"model": {"name": "other"}}'
        async with asyncio.timeout(90):
            updated = await anext(stream)
        assert isinstance(updated, InstanceUpdatedEvent)
        assert await updated.new.metadata() == {"model": {"name": "other"}}


async def test_another_incarnation_at_the_same_address_is_removed_then_added(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    old, new = worker.instance(), worker.instance(incarnation="two")
    store.put(old)
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        await anext(stream)
        store.remove(old)
        store.put(new)
        removed, added = await anext(stream), await anext(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert (removed.reason, removed.instance.incarnation) == ("replaced", "one")
        assert isinstance(added, InstanceAddedEvent)
        assert added.instance.incarnation == "two"


async def test_a_new_address_of_the_same_incarnation_is_an_update_and_keeps_its_document(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    store.put(worker.instance())
    moved = FakeWorker()
    async with serving(moved), discovering.watch("prod", "decode", metadata=True) as stream:
        await anext(stream)
        store.put(moved.instance())
        updated = await anext(stream)
        assert isinstance(updated, InstanceUpdatedEvent)
        assert updated.new.port == moved.port
        await eventually(lambda: moved.requests)


async def test_watchers_of_one_key_share_the_held_gets(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.handler = holding = Holding()
    store.put(worker.instance())
    async with (
        discovering.watch("prod", "decode", metadata=True) as first,
        discovering.watch("prod", "decode", metadata=True) as second,
    ):
        assert await anext(first) == await anext(second)
        await eventually(lambda: len(worker.requests) >= 3)
    assert holding.most == 1


def test_ten_gets_at_once_then_five_a_second() -> None:
    schedule, now, asked = FetchSchedule(), 0.0, 0
    while now < 10:
        asked += 1
        now += schedule.throttle(now)
    assert 55 <= asked <= 65


def test_tokens_refill_while_nothing_is_sent() -> None:
    schedule = FetchSchedule()
    for _ in range(11):
        pause = schedule.throttle(0.0)
    assert pause > 0
    assert [schedule.throttle(100.0) for _ in range(10)] == [0.0] * 10


def test_after_two_failed_holds_the_worker_is_polled_for_about_a_minute() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    assert schedule.may_hold(0.0)
    schedule.answered()
    schedule.hold_failed(1.0)
    assert not schedule.may_hold(50.0)
    assert schedule.next_hold(50.0) > 1
    assert schedule.may_hold(70.0)
    schedule.hold_failed(70.0)
    assert not schedule.may_hold(120.0), "one more try, not two"


def test_a_successful_hold_resets_the_count_of_failed_ones() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    schedule.held()
    schedule.hold_failed(1.0)
    assert schedule.may_hold(1.0)


def test_after_a_restart_gets_may_be_held_again() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    schedule.hold_failed(0.0)
    schedule.failed(unreachable=True)
    schedule.answered()
    assert not schedule.may_hold(0.0), "only the GET that was to be held failed"
    for _ in range(2):
        schedule.failed(unreachable=True)
    assert not schedule.may_hold(0.0), "not before it answers"
    schedule.answered()
    assert schedule.may_hold(0.0)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_delay_after_failures_is_at_most_five_seconds(unreachable: list[bool]) -> None:
    schedule = FetchSchedule()
    for number, each in enumerate(unreachable, 1):
        assert 0 <= schedule.failed(unreachable=each) <= min(5.0, 0.05 * 2**number)


def test_a_frozen_worker_is_asked_again_at_once() -> None:
    """Each GET waits for seconds: after a long freeze, the next one must not be seconds away."""
    schedule = FetchSchedule()
    assert max(schedule.failed(unreachable=True, frozen=True) for _ in range(50)) <= 0.1
    assert max(schedule.failed(unreachable=True) for _ in range(50)) > 1


WORKER = Instance("w", "prod", "decode", "10.0.0.1", 8001, "one")


def http(port: object) -> dict[str, Any]:
    return {"transport": {"http": {"port": port}}}


def test_the_url_has_the_port_of_the_metadata_or_the_registered_one() -> None:
    assert WORKER.url == "http://10.0.0.1:8001"
    assert replace(WORKER, serving_port=8000).url == "http://10.0.0.1:8000"
    assert replace(WORKER, address="fd00::1", serving_port=8000).url == "http://[fd00::1]:8000"


@pytest.mark.parametrize("document", [http(8000), http("8000"), {"Transport": {"http": {"port": 8000}}}])
def test_a_port_is_read_in_each_spelling(document: dict[str, Any]) -> None:
    assert serving_port(WORKER, document) == 8000


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"transport": []},
        {"transport": {"http": 1}},
        http(0),
        http(65536),
        http(True),
        http("٣"),
        http(None),
    ],
)
def test_invalid_ports_are_none(document: dict[str, Any]) -> None:
    assert serving_port(WORKER, document) is None


def test_a_document_may_not_name_a_system_port() -> None:
    assert serving_port(WORKER, http(22)) is None
    assert not may_name(WORKER, 1023)
    assert may_name(WORKER, 1024)
    assert may_name(replace(WORKER, port=80), 80)
    assert may_name(replace(WORKER, ports={"api": 443}), 443)
