"""Who is told of released requests and of changed loads, when, and in what order."""

import asyncio
import logging
import time
from dataclasses import replace

import numpy as np
import pytest

from discovery import InstanceAddedEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.load import Load
from tests.epp.endpoints.test_datastore import datastore, instance

PAGE = Load(waiting=2, running=1, kv_usage=0.5)


def told(store: Datastore) -> list[str]:
    """What the hooks say, with what they see at that moment."""
    said: list[str] = []
    store.on_reset.append(lambda endpoint: said.append(f"reset {endpoint.id}"))
    store.on_change.append(lambda: said.append(f"change, {len(store.endpoints)} there"))
    store.on_load_change.append(lambda endpoint: said.append(f"load {endpoint.id}, {waiting(store)} wait"))
    store.on_release.append(
        lambda endpoint: said.append(f"release {endpoint.id}, {store.inflight(endpoint)} left")
    )
    return said


def waiting(store: Datastore) -> list[float]:
    return list(store.pool(0).waiting.tolist())


def test_a_release_is_told_after_the_count_fell() -> None:
    store = datastore("w1")
    (endpoint,) = store.endpoints
    said = told(store)
    store.reserve(endpoint)
    store.reserve(endpoint)
    assert said == []
    store.release(endpoint)
    store.apply(InstanceRemovedEvent(instance("w1"), "deleted"))
    store.release(endpoint)  # of one that is gone
    assert said == [
        "release w1, 1 left",
        "reset w1",
        "change, 0 there",
        "load w1, [] wait",
        "release w1, 0 left",
    ]


def test_members_that_come_change_and_go_change_the_load() -> None:
    store = datastore()
    said = told(store)
    old, new = instance("w1"), instance("w1", port=8001)
    store.apply(InstanceAddedEvent(old), {})
    store.apply(InstanceUpdatedEvent(old, new), {})
    store.apply(InstanceRemovedEvent(new, "terminating"))
    store.apply(InstanceRemovedEvent(instance("unknown"), "deleted"))
    assert [word for word in said if word.startswith("load")] == ["load w1, [0.0] wait"] * 2 + [
        "load w1, [] wait"
    ]
    assert said[0] == "change, 1 there"


def test_a_look_that_changes_numbers_is_told_and_one_that_confirms_them_is_not() -> None:
    store = datastore("w1", "w2")
    _, second = store.endpoints
    said = told(store)
    store.observe(second, PAGE, 1.0, 1.0)
    assert said == ["load w2, [0.0, 2.0] wait"]
    store.observe(second, PAGE, 1.1, 1.0)
    assert len(said) == 1
    store.observe(second, Load(waiting=0, running=1, kv_usage=0.5), 1.2, 1.0)
    assert said[1:] == ["load w2, [0.0, 0.0] wait"]
    store.reserve(second)  # the next page shows it: what was sent unseen is seen
    store.observe(second, Load(waiting=0, running=1, kv_usage=0.5), 1.3, 1.0)
    assert len(said) == 3


def test_numbers_that_are_not_believed_any_more_are_a_change() -> None:
    store = datastore("w1")
    (endpoint,) = store.endpoints
    store.observe(endpoint, PAGE, 1.0, 1.0)
    said = told(store)
    store.observe(endpoint, Load(waiting=float("nan")), 1.1, 1.0)
    store.observe(endpoint, Load(waiting=float("nan")), 1.2, 1.0)
    assert len(said) == 1
    store.observe(endpoint, PAGE, 1.3, 1.0)
    store.record_failed_scrape(endpoint, has_page=False)
    store.record_failed_scrape(endpoint, has_page=False)
    assert len(said) == 3
    store.record_failed_scrape(endpoint, has_page=True)
    assert len(said) == 4


def test_a_hook_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    store = datastore("w1")
    (endpoint,) = store.endpoints

    def failing(_: Endpoint) -> None:
        raise ZeroDivisionError("sec" + "ret")

    store.on_release.append(failing)
    store.on_load_change.append(failing)
    said = told(store)
    store.reserve(endpoint)
    with caplog.at_level(logging.WARNING):
        store.release(endpoint)
        store.observe(endpoint, PAGE, 1.0)
    assert store.inflight(endpoint) == 0
    assert said == ["release w1, 0 left", "load w1, [2.0] wait"]
    assert len(caplog.messages) == 2
    for line in caplog.messages:
        assert "ZeroDivisionError" in line
        assert "secret" not in line, "without the words of the fault"


def test_a_hook_may_leave_while_it_is_told() -> None:
    store = datastore("w1")
    (endpoint,) = store.endpoints
    heard: list[str] = []

    def once(told: Endpoint) -> None:
        heard.append(told.id)
        store.on_release.remove(once)

    store.on_release += [once, lambda told: heard.append("other")]
    for _ in range(2):
        store.reserve(endpoint)
        store.release(endpoint)
    assert heard == ["w1", "other", "other"]


async def test_listeners_hear_once_of_all_changes_of_a_turn() -> None:
    store = datastore("w0")
    told: list[int] = []
    store.on_change.append(lambda: told.append(len(store.endpoints)))
    for number in range(1, 1000):
        store.apply(InstanceAddedEvent(instance(f"w{number}")), {})
    assert told == []
    await asyncio.sleep(0)
    assert told == [1000]
    await asyncio.sleep(0)
    assert told == [1000]


async def test_whoever_reads_sees_a_change_at_once_and_listeners_have_heard_of_it() -> None:
    store = datastore("w1", "w2")
    told: list[tuple[str, ...]] = []
    store.on_change.append(lambda: told.append(tuple(one.id for one in store.endpoints)))
    store.apply(InstanceRemovedEvent(instance("w1"), "deleted"))
    assert [one.id for one in store.pool(0.0).endpoints] == ["w2"]
    assert told == [("w2",)]
    store.apply(InstanceAddedEvent(instance("w3")), {"model": {"name": "m"}})
    mask = store.serving("m")
    assert mask is None, "w2 says nothing of models"
    assert told == [("w2",), ("w2", "w3")]
    await asyncio.sleep(0)
    assert len(told) == 2


async def test_a_listener_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    store = datastore()
    told: list[int] = []

    def failing() -> None:
        raise ZeroDivisionError

    store.on_change += [failing, lambda: told.append(len(store.endpoints))]
    store.apply(InstanceAddedEvent(instance("w1")), {})
    assert len(store.pool(0.0)) == 1
    assert told == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.usefixtures("frozen_heap")
async def test_a_large_pool_with_many_adapters_that_becomes_unreachable_costs_little() -> None:
    """Claimed: 0.02 s. A mask for each worker and adapter took 7 s."""
    document = {"model": {"name": "m", "adapters": [f"lora-{number}" for number in range(32)]}}
    store = datastore()
    store.on_change.append(lambda: len(store.endpoints))
    workers = [instance(f"w{number}") for number in range(1000)]
    began = time.process_time()
    for worker in workers:
        store.apply(InstanceAddedEvent(worker), document)
    for worker in workers:
        store.apply(InstanceUpdatedEvent(worker, replace(worker, reachable=False)), document)
    assert store.serving("lora-3") is None
    assert not store.all_reachable
    for worker in workers[:20]:
        store.apply(InstanceUpdatedEvent(worker, worker), {"model": {"name": "other"}})
        mask = store.serving("lora-3")
        assert mask is not None
        assert 980 <= np.count_nonzero(mask) < 1000
    assert time.process_time() - began < 0.5
