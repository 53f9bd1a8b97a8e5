import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery import (
    Instance,
    InstanceAddedEvent,
    InstanceEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    MetadataUnavailableError,
)
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Adapters, Column, EndpointPool
from epp.endpoints.load import Load
from epp.endpoints.metadata_feed import MissingWorkers, follow_discovery
from tests.epp.scheduling.endpoint_pools import add_worker


def instance(name: str = "w1", **fields: Any) -> Instance:
    given: dict[str, Any] = {
        "namespace": "default",
        "component": "decode",
        "address": "10.0.0.1",
        "port": 8000,
        "incarnation": "a",
    }
    return Instance(name, **given | fields)


def datastore(*names: str) -> Datastore:
    store = Datastore()
    for name in names:
        store.apply(InstanceAddedEvent(instance(name)), {})
    return store


def test_endpoints_come_and_go() -> None:
    changes: list[int] = []
    store = Datastore()
    store.on_change.append(lambda: changes.append(len(store.endpoints)))
    for name in ("w1", "w2", "w3"):
        store.apply(InstanceAddedEvent(instance(name)), {})
    store.observe(store.endpoints[2], Load(waiting=7.0, adapters=Adapters(frozenset({"x"}))), now=5.0)
    store.reserve(store.endpoints[1])
    store.apply(InstanceRemovedEvent(instance("w1"), "deleted"))
    pool = store.pool(now=6.0)
    assert [endpoint.id for endpoint in pool.endpoints] == ["w2", "w3"]
    assert pool.waiting.tolist() == [0, 7]
    assert pool.inflight.tolist() == [1, 0]
    assert pool.age.tolist() == [float("inf"), 1.0]
    assert pool.adapters[1].active == {"x"}
    assert changes == [1, 2, 3, 2]
    store.apply(InstanceRemovedEvent(instance("w9"), "deleted"))
    assert len(store.endpoints) == 2


def test_numbers_are_written_in_place() -> None:
    store = datastore("w1")
    pool = store.pool(now=1.0)
    store.reserve(store.endpoints[0])
    assert pool.inflight.tolist() == [1]
    store.observe(store.endpoints[0], Load(running=3.0, kv_usage=0.5, max_lora=2.0), now=0.5)
    assert (pool.running.tolist(), pool.kv_usage.tolist(), pool.max_lora.tolist()) == ([3], [0.5], [2])
    store.observe(store.endpoints[0], Load(waiting=1.0), now=0.75)
    assert (pool.running.tolist(), pool.waiting.tolist(), pool.age.tolist()) == ([3], [1], [0.25])


def test_an_update_keeps_numbers_and_in_flight() -> None:
    store = datastore("w1", "w2")
    before = store.endpoints[0]
    store.reserve(before)
    store.observe(before, Load(waiting=4.0), now=1.0)
    update = InstanceUpdatedEvent(instance(), instance(reachable=False, labels={"a": "b"}))
    store.apply(update, {"model": {"name": "m"}})
    pool = store.pool(now=1.0)
    assert pool.endpoints[0].models == {"m"}
    assert (pool.waiting[0], pool.inflight[0], pool.reachable.tolist()) == (4, 1, [False, True])
    store.apply(InstanceUpdatedEvent(instance(), instance()), None)
    assert store.endpoints[0].models == {"m"}, "metadata that cannot be had now is not lost"
    store.release(before)
    assert store.pool(now=1.0).inflight.tolist() == [0, 0]


def test_in_flight_survives_a_readiness_flip_but_not_another_incarnation() -> None:
    store = datastore("w1")
    first = store.endpoints[0]
    store.reserve(first)
    store.apply(InstanceRemovedEvent(instance(), "not_ready"))
    store.apply(InstanceAddedEvent(instance()), {})
    assert store.pool(now=0.0).inflight.tolist() == [1]
    store.apply(InstanceRemovedEvent(instance(), "replaced"))
    store.apply(InstanceAddedEvent(instance(incarnation="b")), {})
    assert store.pool(now=0.0).inflight.tolist() == [0]
    store.release(first)
    assert store.pool(now=0.0).inflight.tolist() == [0]


def test_another_process_under_the_same_name_is_known_of_nothing() -> None:
    store, reset = Datastore(), list[str]()
    store.on_reset.append(lambda endpoint: reset.append(endpoint.id))
    store.apply(InstanceAddedEvent(instance(revision="a.one.1")), {})
    store.reserve(store.endpoints[0])
    store.observe(store.endpoints[0], Load(waiting=9.0), now=1.0)
    store.apply(InstanceUpdatedEvent(instance(revision="a.one.1"), instance(revision="a.one.2")), {})
    assert (reset, store.pool(now=1.0).waiting.tolist()) == ([], [9])
    store.apply(InstanceUpdatedEvent(instance(revision="a.one.2"), instance(revision=None)), None)
    store.apply(InstanceUpdatedEvent(instance(revision=None), instance(revision="a.two.1")), {})
    pool = store.pool(now=1.0)
    assert reset == ["w1"]
    assert (pool.waiting.tolist(), pool.age.tolist(), pool.inflight.tolist()) == ([0], [float("inf")], [1])
    store.apply(InstanceRemovedEvent(instance(), "not_ready"))
    assert reset == ["w1"], "it comes back with its cache"
    store.apply(InstanceAddedEvent(instance()), {})
    store.apply(InstanceRemovedEvent(instance(), "deleted"))
    assert reset == ["w1", "w1"]


def test_who_serves_a_model() -> None:
    store = Datastore()
    assert store.serving("m") is None
    store.apply(InstanceAddedEvent(instance("w1")), {})
    assert store.serving("m") is None
    store.apply(InstanceAddedEvent(instance("w2")), {"model": {"name": "m", "adapters": ["lora"]}})
    store.apply(InstanceAddedEvent(instance("w3")), {"model": {"name": "other"}})
    assert [
        found.tolist() for name in ("m", "lora", "other") if (found := store.serving(name)) is not None
    ] == [[True, True, False], [True, True, False], [True, False, True]]
    store.apply(InstanceRemovedEvent(instance("w1"), "deleted"))
    unknown = store.serving("loaded-later")
    assert unknown is not None
    assert unknown.tolist() == [False, False]
    store.observe(store.endpoints[1], Load(adapters=Adapters(frozenset({"loaded-later"}))), now=0.0)
    shown = store.serving("loaded-later")
    assert shown is not None
    assert shown.tolist() == [False, True]


def test_what_is_observed_or_released_of_the_unknown_is_no_matter() -> None:
    store = datastore("w1")
    gone = store.endpoints[0]
    store.apply(InstanceRemovedEvent(instance(), "deleted"))
    store.observe(gone, Load(waiting=1.0), now=0.0)
    store.reserve(gone)
    store.release(gone)
    assert len(store.pool(now=0.0)) == 0


class Reader:
    """A worker's document, or none."""

    def __init__(self, document: dict[str, Any] | None) -> None:
        self._document = document

    async def read(self, instance: Instance) -> dict[str, Any]:
        if self._document is None:
            raise MetadataUnavailableError(instance.id, "http://w", "it hangs")
        return self._document


async def test_follow_reads_the_metadata_of_each_event() -> None:
    async def events() -> AsyncIterator[InstanceEvent]:
        told = instance(reader=Reader({"Model": {"name": "m"}}))
        silent = instance(reader=Reader(None), reachable=False)
        yield InstanceAddedEvent(told)
        yield InstanceAddedEvent(instance("w2", reader=Reader(None)))
        yield InstanceUpdatedEvent(told, silent)
        yield InstanceRemovedEvent(instance("w2"), "deleted")

    store = Datastore()
    await follow_discovery(events(), store)
    (endpoint,) = store.endpoints
    assert (endpoint.id, endpoint.models, endpoint.reachable) == ("w1", frozenset({"m"}), False)


async def test_a_flood_of_changes_is_logged_with_bounds(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[InstanceEvent]:
        worker = instance(reader=Reader({}))
        yield InstanceAddedEvent(worker)
        for number in range(1000):
            yield InstanceUpdatedEvent(worker, replace(worker, revision=f"x.y.{number}"))
        yield InstanceRemovedEvent(worker, "deleted")

    with caplog.at_level(logging.INFO):
        await follow_discovery(events(), Datastore())
    lines = caplog.messages
    assert len(lines) == 102
    assert lines[100].endswith("changed; more such lines of this minute are only counted")
    assert "is gone: deleted" in lines[-1], "another kind is not held back"


async def test_what_is_ignored_is_logged_once_for_each_value(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[InstanceEvent]:
        for port in ("x" * 1000, "x" * 1000, 22, 22, 9000):
            yield InstanceAddedEvent(instance(reader=Reader({"transport": {"http": {"metrics_port": port}}})))

    store = Datastore()
    await follow_discovery(events(), store)
    lines = caplog.messages
    assert len(lines) == 2
    assert all(line.startswith("w1: metadata transport.http.metrics_port is ") for line in lines)
    assert max(map(len, lines)) < 200
    assert store.endpoints[0].ignored == ()


LOADED = Load(waiting=1.0, kv_usage=0.5, adapters=Adapters(frozenset({"x"})))


@pytest.mark.parametrize(
    ("load", "now", "period", "same"),
    [
        (LOADED, 1.1, 0.05, True),
        (Load(), 1.1, 0.05, True),
        (Load(waiting=2.0), 1.1, 0.05, False),
        (Load(adapters=Adapters(frozenset({"y"}))), 1.1, 0.05, False),
        (LOADED, 1.2, 0.05, False),
        (LOADED, 1.1, 0.01, False),
    ],
    ids=["the same", "nothing said", "a number", "an adapter", "was stale", "stale sooner"],
)
def test_a_look_that_changes_nothing_leaves_the_state(
    load: Load, now: float, period: float, same: bool
) -> None:
    store = datastore("w1")
    store.observe(store.endpoints[0], LOADED, now=1.0, period=0.05)
    before = store.pool(now=1.0)
    store.reserve(store.endpoints[0])
    assert store.pool(now=1.1).state is before.state, "what is in flight is no part of it"
    store.observe(store.endpoints[0], load, now=now, period=period)
    assert (store.pool(now=now).state is before.state) is same
    assert store.pool(now=now).age.tolist() == [0]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 1e308, 100_001.0])
@pytest.mark.parametrize("field", ["waiting", "running", "kv_usage"])
def test_what_makes_no_sense_is_not_known(field: str, number: float) -> None:
    """Neither as the column's 0.0, which would be the best of all, nor as the last number that made sense."""
    store = datastore("w1", "w2")
    problem = Load(**{"waiting": 0.0, "running": 0.0, "kv_usage": 0.0, field: number})
    for endpoint in store.endpoints:
        store.observe(endpoint, Load(waiting=0.0, running=0.0, kv_usage=0.0), now=1.0, period=0.05)
    before = store.pool(now=1.0)
    store.observe(store.endpoints[0], problem, now=1.01, period=0.05)
    pool = store.pool(now=1.02)
    assert pool.fresh(3600.0).tolist() == [False, True]
    assert pool.state is not before.state, "what was decided by its numbers is decided again"
    assert np.isfinite(pool.waiting + pool.running + pool.kv_usage).all()
    store.observe(store.endpoints[0], problem, now=1.03, period=0.05)
    assert store.pool(now=1.03).state is pool.state
    store.observe(store.endpoints[0], Load(waiting=2.0), now=1.04, period=0.05)
    assert store.pool(now=1.04).fresh(0.2).tolist() == [True, True]


def late(store: Datastore, now: float) -> list[bool]:
    found = store.pool(now).late()
    return [] if found is None else found.tolist()


def test_who_was_asked_is_late_until_its_page_comes() -> None:
    store = datastore("w1", "w2")
    w1, w2 = store.endpoints
    for endpoint in (w1, w2):
        store.observe(endpoint, LOADED, now=1.0, period=0.05)
        store.expect_page(endpoint, 1.15)
    store.observe(w2, LOADED, now=1.14, period=0.05)
    assert late(store, 1.14) == []
    assert late(store, 1.16) == [True, False]
    store.expect_page(w2, 1.29)
    assert late(store, 1.3) == [], "both: then it says nothing"
    store.observe(w1, LOADED, now=1.3, period=0.05)
    assert late(store, 1.31) == [False, True]


def test_a_picker_that_stands_still_makes_nobody_late() -> None:
    store = datastore(*[f"w{number}" for number in range(10)])
    for endpoint in store.endpoints:
        store.observe(endpoint, LOADED, now=1.0, period=0.6)
    store.observe(store.endpoints[0], LOADED, now=1.0, period=0.055)
    assert late(store, 1.4) == [], "nobody was asked"
    assert late(store, 2.0)[:2] == [True, False], "nobody asks any more"


def test_who_has_no_known_period_is_never_late() -> None:
    store = datastore("w1", "w2", "w3")
    store.observe(store.endpoints[0], LOADED, now=1.0)
    store.observe(store.endpoints[1], LOADED, now=1.0, period=0.05)
    store.expect_page(store.endpoints[2], 1.0)
    assert store.pool(100.0).numbers[Column.LATE_AT].tolist() == [math.inf, pytest.approx(1.65), math.inf]


def test_a_page_can_be_expected_sooner_or_later_than_it_was() -> None:
    store = datastore("w1", "w2")
    w1, w2 = store.endpoints
    for endpoint in (w1, w2):
        store.observe(endpoint, LOADED, now=1.0, period=0.6)
    assert late(store, 1.5) == []
    store.expect_page(w1, 1.4)
    assert late(store, 1.5) == [True, False]
    store.expect_page(w1, 1.6)
    assert late(store, 1.5) == []
    store.observe(w2, replace(LOADED, waiting=-1.0), now=1.5)
    assert store.pool(1.5).numbers[Column.LATE_AT, 1] == math.inf, (
        "its numbers make no sense: they are unknown"
    )


def test_who_comes_or_goes_changes_the_state() -> None:
    store = datastore("w1")
    before = store.pool(now=1.0)
    store.apply(InstanceAddedEvent(instance("w2")), {})
    assert store.pool(now=1.0).state is not before.state


def test_a_model_that_all_serve_needs_no_mask() -> None:
    store = Datastore()
    for name in ("w1", "w2"):
        store.apply(InstanceAddedEvent(instance(name)), {"model": {"name": "m"}})
    assert store.serving("m") is None
    assert store.all_reachable
    store.apply(InstanceUpdatedEvent(instance("w1"), instance("w1", reachable=False)), None)
    assert not store.all_reachable


@pytest.fixture
def missing() -> dict[str, str]:
    return {}


@pytest.fixture
def missing_workers(missing: dict[str, str]) -> MissingWorkers:
    return MissingWorkers(lambda: dict(missing))


def taken(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


def test_each_is_named_once_per_reason(
    missing_workers: MissingWorkers, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["a"] = "refused"
    missing_workers.check()
    assert taken(caplog) == [], "it may be about to answer"
    missing_workers.check()
    missing_workers.check()
    assert taken(caplog) == ["a gets no requests: refused"]
    missing["a"] = "HTTP 500"
    missing_workers.check()
    assert taken(caplog) == ["a gets no requests: HTTP 500"]
    missing.clear()
    missing_workers.check()
    missing["a"] = "HTTP 500"
    missing_workers.check()
    assert taken(caplog) == []
    missing_workers.check()
    assert taken(caplog) == ["a gets no requests: HTTP 500"]


def test_a_pool_that_is_cut_off_does_not_fill_the_log(
    missing_workers: MissingWorkers, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing |= {f"w{number:03}": "refused" for number in range(100)}
    for _ in range(3):
        missing_workers.check()
    lines = taken(caplog)
    assert lines[0] == "w000 gets no requests: refused"
    assert lines[10:] == ["90 more get no requests; adsum discovery explain names them"]


async def test_who_is_missing_at_first_has_been_waited_for(
    missing_workers: MissingWorkers, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["a"] = "refused"
    running = asyncio.create_task(missing_workers.run(60.0))
    await asyncio.sleep(0)
    assert taken(caplog) == ["a gets no requests: refused"]
    running.cancel()
    await asyncio.wait({running})


COUNT = 6


def store_of(count: int = COUNT) -> Datastore:
    store = Datastore()
    for _ in range(count):
        add_worker(store, is_seen=False)
    return store


def page(
    store: Datastore, row: int, now: float, waiting: float = 0.0, adapters: Adapters | None = None
) -> None:
    store.observe(
        store.endpoints[row], Load(waiting=waiting, running=0.0, kv_usage=0.0, adapters=adapters), now
    )


def without(row: int) -> np.ndarray:
    mask = np.ones(COUNT, dtype=np.bool_)
    mask[row] = False
    return mask


def test_an_equal_selection_of_a_later_pool_has_the_same_tuple_of_endpoints() -> None:
    """So that plugins find what they keep for these endpoints."""
    store = store_of()
    first = store.pool(1.0).select(without(2))
    page(store, 0, 2.0)
    later = store.pool(2.0).select(without(2))
    assert later.endpoints is first.endpoints
    assert [endpoint.id for endpoint in later.endpoints] == ["w0", "w1", "w3", "w4", "w5"]
    assert later.endpoints is not store.pool(2.0).select(without(3)).endpoints


def test_its_numbers_and_adapters_are_those_of_now() -> None:
    store = store_of()
    store.pool(1.0).select(without(0))
    page(store, 1, 2.0, waiting=7.0, adapters=Adapters(frozenset({"a"}), frozenset()))
    pool = store.pool(2.0).select(without(0))
    assert pool.waiting.tolist() == [7.0, 0.0, 0.0, 0.0, 0.0]
    assert [sorted(one.active) for one in pool.adapters] == [["a"], [], [], [], []]


def test_its_state_lasts_as_long_as_that_of_the_pool() -> None:
    store = store_of()
    one, other = store.pool(1.0).select(without(0)), store.pool(1.0).select(without(0))
    assert one.state is other.state is not None
    assert store.pool(1.0).select(without(1)).state is not one.state
    page(store, 1, 2.0, waiting=7.0)
    assert store.pool(2.0).select(without(0)).state is not one.state


def test_a_pool_of_which_nobody_tracks_changes_has_selections_without_a_state() -> None:
    pool = store_of().pool(1.0)
    untracked = EndpointPool(pool.endpoints, pool.numbers, pool.adapters, 1.0)
    assert untracked.select(without(0)).state is None


def test_what_was_selected_before_endpoints_changed_is_forgotten() -> None:
    store = store_of()
    before = store.pool(1.0).select(without(0)).endpoints
    store.apply(InstanceAddedEvent(Instance("w6", "ns", "c", "10.0.0.7", 8000, "a")), {})
    mask = np.array([False, *[True] * COUNT])
    after = store.pool(1.0).select(mask).endpoints
    assert len(after) == len(before) + 1


@given(
    st.lists(
        st.lists(st.lists(st.booleans(), min_size=COUNT, max_size=COUNT), min_size=1, max_size=3), max_size=60
    )
)
def test_selections_of_selections_are_those_that_a_plain_list_gives(masks: list[list[list[bool]]]) -> None:
    """However many: only the latest are remembered."""
    store = store_of()
    rng = random.Random(1)
    for now, nested in enumerate(masks):
        page(store, rng.randrange(COUNT), float(now), waiting=float(rng.randrange(9)))
        pool = store.pool(float(now))
        left = list(zip(pool.endpoints, pool.waiting.tolist(), strict=True))
        for mask in nested:
            kept = mask[: len(left)]
            pool = pool.select(np.array(kept, dtype=np.bool_))
            left = [one for one, keep in zip(left, kept, strict=True) if keep]
            assert list(zip(pool.endpoints, pool.waiting.tolist(), strict=True)) == left
