import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from discovery import Instance, InstanceAddedEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.scheduling.saturation import UtilizationDetector
from epp.scraping.engines import Engine, Series
from epp.scraping.schedule import ScrapeIntervals
from epp.scraping.scraper import ScrapeSettings
from epp.server import PickerServer
from tests.epp.local_picker import local
from tests.epp.scraping.paged_worker import (
    IDLE,
    IMPATIENT,
    RULES,
    SLOW_WHEN_IDLE,
    Worker,
    add,
    age,
    scraping,
    serving,
    waiting,
)
from tests.eventually import eventually
from tests.free_port import free_port


async def test_the_numbers_follow_the_page() -> None:
    worker, store = Worker(), Datastore()
    async with serving(worker), scraping(store) as scraper:
        add(store, worker)
        assert age(store) == float("inf")
        await eventually(lambda: waiting(store) == [1])
        pool = store.pool(0.0)
        assert (pool.running.tolist(), pool.kv_usage.tolist()) == ([2], [0.5])
        assert age(store) < math.inf
        worker.page = worker.page.replace(b"waiting 1", b"waiting 9")
        await eventually(lambda: waiting(store) == [9])
        await eventually(lambda: worker.asked > 5)
        assert len(worker.connections) == 1, "the connection is kept"
        assert scraper.engines_detected == 1


@pytest.mark.parametrize("number", [b"NaN", b"+Inf", b"-1", b"1e308", b"full"])
async def test_a_page_that_makes_no_sense_is_as_one_that_is_not_there(
    number: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker, store = Worker(), Datastore()
    honest = worker.page
    async with serving(worker), scraping(store):
        add(store, worker)
        await eventually(lambda: age(store) < 1)
        worker.page = honest.replace(b"perc 0.5", b"perc " + number)
        await eventually(lambda: age(store) == math.inf)
        asked = worker.asked
        await eventually(lambda: worker.asked > asked + 2)
        [line] = [record.getMessage() for record in caplog.records if "no metrics of" in record.getMessage()]
        assert "the page has an implausible value: kv_usage is " in line
        assert "expected a number from 0 to 1" in line
        worker.page = honest
        asked = worker.asked
        await eventually(lambda: age(store) < 1 and worker.asked > asked + 2)
        assert caplog.text.count("are back\n") == 1


async def test_the_last_scrape_of_an_endpoint_that_is_gone_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may have begun before the endpoint was removed, and fail before it is cancelled."""
    worker, store = Worker(), Datastore()
    async with serving(worker), scraping(store) as scraper:
        add(store, worker)
        await eventually(lambda: age(store) < 1)
        gone = store.instance(store.endpoints[0].key)
        assert gone is not None
        hear, store.on_change = store.on_change, []
        store.apply(InstanceRemovedEvent(gone, "deleted"))
        worker.status = 503
        await eventually(lambda: scraper.errors.failed >= 2)
        store.on_change = hear
    assert "no metrics of" not in caplog.text


async def test_the_size_of_a_cache_is_told_once_and_again_after_a_restart() -> None:
    worker, store, told = Worker(), Datastore(), list[tuple[str, int]]()
    store.on_cache_size.append(lambda endpoint, tokens: told.append((endpoint.id, tokens)))
    worker.page += b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    async with serving(worker), scraping(store):
        born = Instance("w1", "ns", "c", "127.0.0.1", worker.port, "a", revision="x.epoch1.0")
        store.apply(InstanceAddedEvent(born), {})
        await eventually(lambda: worker.asked > 8)
        assert told == [("w1", 1600)]
        worker.page = worker.page.replace(b'"100"', b'"50"')
        store.apply(InstanceUpdatedEvent(born, replace(born, revision="x.epoch2.0")), {})
        await eventually(lambda: told[1:])
        (endpoint,) = store.endpoints
        store.apply(InstanceRemovedEvent(born, "deleted"))
        assert told == [("w1", 1600), ("w1", 800)]
    assert store.cache_tokens(endpoint) is None


async def test_a_size_that_nobody_tells_is_not_looked_for_for_ever() -> None:
    worker, store, told = Worker(), Datastore(), list[int]()
    store.on_cache_size.append(lambda _, tokens: told.append(tokens))
    async with serving(worker), scraping(store):
        add(store, worker)
        await eventually(lambda: worker.asked > 8)
        worker.page += b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        asked = worker.asked
        await eventually(lambda: worker.asked > asked + 3)
    assert told == []


@pytest.mark.parametrize("path", ["/metrics", "/m/x?a=b", "//evil.example:80/m", "/@evil.example/", "/a%20b"])
async def test_a_worker_names_its_path_but_no_host(path: str) -> None:
    worker, store = Worker(), Datastore()
    async with serving(worker), scraping(store):
        add(store, worker, document={"transport": {"http": {"metrics_path": path}}})
        await eventually(lambda: waiting(store) == [1])
    assert worker.paths[0].endswith(path.removeprefix("/"))


async def test_the_metrics_port_can_be_another_one_and_an_unknown_engine_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker, metrics, store = Worker(), Worker(), Datastore()
    metrics.page = b"sglang:num_queue_reqs 4\n"
    async with serving(worker, metrics), scraping(store):
        http = {"metrics_port": metrics.port, "engine": "no-engine-that-we-know"}
        add(store, worker, document={"transport": {"http": http}})
        await eventually(lambda: waiting(store) == [4])
    assert worker.asked == 0
    [line] = [line for line in caplog.messages if "engine" in line]
    assert line.startswith("w1: the engine 'no-engine-that-we-know' is not known, expected one of vllm, ")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"status": 503}, "status 503"),
        ({"status": 302, "headers": {"Location": "/elsewhere"}}, "status 302"),
        ({"page": b"x" * 5000}, "more than 4096 bytes"),
        ({"page": b"<html>hello</html>"}, "no series of a known engine"),
        ({"page": b""}, "no series of a known engine"),
        ({"hang": True}, "no complete answer within 0.2 s"),
    ],
)
async def test_what_goes_wrong_is_said_and_counted_and_passes(
    wrong: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker, store = Worker(), Datastore()
    right = {name: getattr(worker, name) for name in wrong}
    for name, value in wrong.items():
        setattr(worker, name, value)
    failures: list[tuple[str, str]] = []

    def on_error(endpoint: Endpoint, reason: str) -> None:
        failures.append((endpoint.id, reason))

    rules = IMPATIENT if "hang" in wrong else RULES
    async with serving(worker), scraping(store, rules, on_error=on_error) as scraper:
        add(store, worker)
        await eventually(lambda: len(failures) >= 2)
        assert failures[0][0] == "w1"
        assert said in failures[0][1]
        errors, fetched = scraper.errors, said == "no series of a known engine"
        assert (errors.read, errors.fetch) == ((errors.failed, 0) if fetched else (0, errors.failed))
        await eventually(lambda: "it counts as full and ranks behind endpoints whose" in caplog.text)
        assert age(store) == float("inf")
        for name, value in right.items():
            setattr(worker, name, value)
        await eventually(lambda: waiting(store) == [1])


async def test_a_worker_that_is_not_there_and_comes_back() -> None:
    worker, store = Worker(), Datastore()
    worker.port = free_port()
    failures: list[str] = []
    async with scraping(store, on_error=lambda endpoint, reason: failures.append(reason)):
        async with serving(worker):
            add(store, worker)
            await eventually(lambda: waiting(store) == [1])
        await eventually(lambda: len(failures) >= 2)
        before = age(store)
        async with serving(worker):
            await eventually(lambda: age(store) < before)


async def test_one_that_hangs_costs_the_others_nothing() -> None:
    workers, store = [Worker() for _ in range(5)], Datastore()
    for worker in workers[:4]:
        worker.hang = True
    async with (
        serving(*workers),
        scraping(store, ScrapeSettings(intervals=ScrapeIntervals.fixed(0.01), timeout=30.0)),
    ):
        for i, worker in enumerate(workers):
            add(store, worker, f"w{i}")
        await eventually(lambda: workers[4].asked > 10)
        assert [worker.asked for worker in workers[:4]] == [1, 1, 1, 1]


async def test_errors_are_followed_by_longer_pauses() -> None:
    good, bad, store = Worker(), Worker(), Datastore()
    bad.status = 500
    interval, now = 0.005, asyncio.get_running_loop().time
    rules = replace(
        RULES, intervals=ScrapeIntervals(interval=interval, idle_interval=interval, backoff=3600.0)
    )
    async with serving(good, bad), scraping(store, rules):
        began = now()
        add(store, good, "good")
        add(store, bad, "bad")
        await eventually(lambda: good.asked > 30)
        assert bad.asked >= 1
        assert sum(0.9 * interval * 2**failures for failures in range(1, bad.asked)) <= now() - began


async def test_who_leaves_is_asked_no_more_and_who_changes_is_asked_elsewhere() -> None:
    worker, other, store = Worker(), Worker(), Datastore()
    async with serving(worker, other), scraping(store):
        add(store, worker)
        add(store, other, "w2")
        await eventually(lambda: waiting(store) == [1, 1])
        store.apply(InstanceRemovedEvent(Instance("w2", "ns", "c", "127.0.0.1", other.port, "a"), "deleted"))
        before = Instance("w1", "ns", "c", "127.0.0.1", worker.port, "a")
        store.apply(InstanceUpdatedEvent(before, before), {"transport": {"http": {"metrics_path": "/new"}}})
        await eventually(lambda: worker.paths[-1] == "/new")
        asked = other.asked
        await eventually(lambda: worker.paths.count("/new") > 5)
        assert other.asked <= asked + 1, "only what was already under way"


async def test_nothing_is_left_when_it_stops() -> None:
    worker, store = Worker(), Datastore()
    async with serving(worker):
        before = asyncio.all_tasks()
        async with scraping(store):
            add(store, worker)
            await eventually(lambda: waiting(store) == [1])
        await eventually(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
        assert store.on_change == []


@pytest.mark.parametrize("address", ["[::1]", "xn--"])
async def test_an_address_that_is_none_costs_the_others_nothing(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker, store, failed = Worker(), Datastore(), list[str]()
    async with serving(worker), scraping(store, on_error=lambda endpoint, _: failed.append(endpoint.id)):
        store.apply(InstanceAddedEvent(Instance("odd", "ns", "c", address, 8000, "a")))
        add(store, worker)
        await eventually(lambda: waiting(store) == [0, 1])
    assert failed == ["odd"]
    assert "make no URL" in caplog.text


async def test_a_change_among_many_does_not_keep_picks_waiting() -> None:
    """They wait for as long as it takes to find out which of 1,000 endpoints is another one; of 20 times the shortest, since
    what else the machine does makes it longer.
    """
    store = Datastore()
    for number in range(1000):
        address = f"127.0.{number // 250}.{number % 250 + 1}"
        store.apply(InstanceAddedEvent(Instance(f"w{number}", "ns", "c", address, 9, "a")))
    rules = ScrapeSettings(intervals=ScrapeIntervals(interval=600, idle_interval=600, max_per_second=1))
    async with scraping(store, rules):
        await asyncio.sleep(0)
        costs = []
        for _ in range(20):
            began = time.process_time()
            for changed in store.on_change:
                changed()
            for _ in range(3):
                await asyncio.sleep(0)
            costs.append(time.process_time() - began)
        assert min(costs) < 0.015


class Faulty(Sequence[Series]):
    """A part of our own that fails on every page."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")


async def test_whatever_fails_in_one_look_is_a_failed_look(caplog: pytest.LogCaptureFixture) -> None:
    worker, store = Worker(), Datastore()
    rules = ScrapeSettings(
        intervals=ScrapeIntervals(interval=0.01, backoff=0.02), engines=(Engine(name="x", waiting=Faulty()),)
    )
    async with serving(worker), scraping(store, rules):
        add(store, worker)
        await eventually(lambda: worker.asked > 3)
    told = [record.message for record in caplog.records if record.name == "epp.scraping.scraper"]
    assert len(told) == 1
    assert "a fault of ours" in told[0]


@pytest.mark.parametrize(
    ("delay", "interval"), [(0.1, 0.01), (0.0, 0.15)], ids=["a slow page", "a long interval"]
)
async def test_who_is_looked_at_less_often_is_not_stale_for_that(delay: float, interval: float) -> None:
    worker, store = Worker(), Datastore()
    worker.page, worker.delay = b"vllm:num_requests_waiting 0\n", delay
    detector = UtilizationDetector.model_construct(metrics_staleness_threshold=0.05)

    def saturation(seconds: float) -> float:
        """So long after the page was read."""
        read_at = float(-store.pool(0.0).age[0])
        return detector.saturation(store.pool(read_at + seconds))

    rules = replace(RULES, intervals=ScrapeIntervals.fixed(interval))
    async with serving(worker), scraping(store, rules):
        add(store, worker)
        await eventually(lambda: age(store) < math.inf)
        for asked in range(2, 6):
            assert saturation(delay + interval) == 0, "the next page is there about now"
            await eventually(lambda asked=asked: worker.asked >= asked)
    assert saturation(3600.0) == 1


async def test_an_idle_endpoint_is_looked_at_seldom_until_a_request_is_sent_there() -> None:
    worker, other, store = Worker(), Worker(), Datastore()
    worker.page = other.page = IDLE
    async with serving(worker, other), scraping(store, SLOW_WHEN_IDLE):
        add(store, worker)
        add(store, other, "w2")
        await eventually(lambda: worker.asked == 1 and other.asked == 1)
        used = store.endpoints[0]
        store.reserve(used)
        await eventually(lambda: worker.asked > 40)  # for longer than it lingers
        store.release(used)
        assert other.asked == 1
        asked, quiet = -1, 0

        def rests() -> bool:
            nonlocal asked, quiet
            quiet = quiet + 1 if asked == worker.asked else 0
            asked = worker.asked
            return quiet > 50

        await eventually(rests)
        store.reserve(used)
        await eventually(lambda: worker.asked > asked + 3)
        assert other.asked == 1


@pytest.mark.parametrize("busy", ["waiting", "running"])
async def test_an_endpoint_that_others_use_is_looked_at_often(busy: str) -> None:
    worker, store = Worker(), Datastore()
    worker.page = IDLE.replace(f"{busy} 0".encode(), f"{busy} 1".encode())
    async with serving(worker), scraping(store, SLOW_WHEN_IDLE):
        add(store, worker)
        await eventually(lambda: worker.asked > 10)


async def test_an_idle_endpoint_is_not_stale_for_being_looked_at_seldom() -> None:
    worker, store = Worker(), Datastore()
    worker.page = IDLE
    async with serving(worker), scraping(store, SLOW_WHEN_IDLE):
        add(store, worker)
        await eventually(lambda: age(store) < math.inf)
        assert worker.asked == 1
        now = asyncio.get_running_loop().time()
        assert store.pool(now + 2 * 3600).fresh(0.2).all()
        assert not store.pool(now + 4 * 3600).fresh(0.2).any()


async def test_nothing_waits_for_a_use_any_more_when_it_stops() -> None:
    worker, store = Worker(), Datastore()
    worker.page = IDLE
    async with serving(worker):
        async with scraping(store, SLOW_WHEN_IDLE):
            add(store, worker)
            await eventually(lambda: bool(store.on_use))
        assert store.on_use == {}
        store.reserve(store.endpoints[0])


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_worker_without_a_page_is_as_full_as_what_is_in_flight(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker, store, detector = (
        Worker(),
        Datastore(),
        UtilizationDetector.model_construct(queue_depth_threshold=5),
    )
    worker.status = status

    def saturation() -> float:
        return detector.saturation(store.pool(time.monotonic()))

    async with serving(worker), scraping(store):
        add(store, worker)
        assert saturation() == 1.0, "nobody has looked yet"
        await eventually(lambda: saturation() == 0.0)
        [endpoint] = store.endpoints
        for _ in range(5):
            store.reserve(endpoint)
        assert saturation() == 1.0
        for _ in range(5):
            store.release(endpoint)
        assert saturation() == 0.0
        assert not store.pool(time.monotonic()).fresh(1.0).any(), "it ranks behind those that are known"
        [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert "has no metrics page" in warning
        assert "requests in flight" in warning
        assert "counts as full" not in warning
        worker.status = 200
        await eventually(lambda: store.pool(time.monotonic()).fresh(1.0).all())
        worker.status = 500
        await eventually(lambda: saturation() == 1.0)


DOCUMENT = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "dataLayer": {"sources": [{"pluginRef": "metrics-data-source"}]},
}


@pytest.mark.parametrize(
    ("parameters", "is_said"),
    [({"scheme": "https"}, True), ({"scheme": "https", "insecureSkipVerify": False}, False), ({}, False)],
)
async def test_that_no_certificate_is_verified_is_said_once(
    parameters: dict[str, object], is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = [{"type": "metrics-data-source", "parameters": parameters}, {"type": "queue-scorer"}]
    profiles = [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}]
    config = json.dumps(DOCUMENT | {"plugins": plugins, "schedulingProfiles": profiles})
    async with PickerServer(local(discovery="memory://nobody", config_text=config)):
        pass
    lines = [record.getMessage() for record in caplog.records if "https" in record.getMessage()]
    assert len(lines) == is_said
    assert all("insecureSkipVerify: false or caCertPath" in line for line in lines)
