from collections.abc import AsyncIterator, Mapping
from typing import Any

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
from epp.datastore import Datastore, EndpointDefaults, read_endpoint
from epp.endpoint import Adapters, Endpoint
from epp.metrics_page import Load


def instance(name: str = "w1", **fields: Any) -> Instance:
    given: dict[str, Any] = {
        "namespace": "default",
        "component": "decode",
        "address": "10.0.0.1",
        "port": 8000,
        "incarnation": "a",
    }
    return Instance(name, **given | fields)


def read(document: Mapping[str, Any], **fields: Any) -> Endpoint:
    return read_endpoint(instance(**fields), document, EndpointDefaults())


def datastore(*names: str) -> Datastore:
    store = Datastore()
    for name in names:
        store.apply(InstanceAddedEvent(instance(name)), {})
    return store


def test_an_instance_without_metadata() -> None:
    endpoint = read({}, zone="z", node="n", labels={"a": "b"})
    assert (endpoint.destination, endpoint.metrics_port, endpoint.metrics_path) == (
        "10.0.0.1:8000",
        8000,
        "/metrics",
    )
    assert (endpoint.models, endpoint.engine, endpoint.zone, endpoint.node) == (frozenset(), None, "z", "n")
    assert endpoint.labels == {"a": "b"}


@pytest.mark.parametrize(("model", "transport"), [("model", "transport"), ("Model", "Transport")])
def test_metadata_in_both_spellings(model: str, transport: str) -> None:
    http = {"port": 9000, "metrics_port": "9100", "metrics_path": "/m?x=1", "engine": "sglang"}
    endpoint = read(
        {model: {"name": "base", "adapters": ["lora"], "aliases": ["also"]}, transport: {"http": http}}
    )
    assert endpoint.models == {"base", "lora", "also"}
    assert (endpoint.port, endpoint.metrics_port, endpoint.metrics_path) == (9000, 9100, "/m?x=1")
    assert endpoint.engine == "sglang"


@pytest.mark.parametrize(
    "document",
    [
        {"transport": []},
        {
            "transport": {
                "http": {"port": 0, "metrics_port": True, "metrics_path": "http://evil/", "engine": 5}
            }
        },
        {
            "transport": {
                "http": {"port": 70000, "metrics_path": "/\ud800", "host": "10.9.9.9", "address": "x"}
            }
        },
        {"model": {"name": 5, "adapters": [None, {"name": "x"}]}, "labels": [1]},
    ],
)
def test_metadata_that_is_not_what_it_should_be_counts_as_absent(document: Mapping[str, Any]) -> None:
    endpoint = read(document)
    assert (endpoint.destination, endpoint.metrics_port, endpoint.metrics_path) == (
        "10.0.0.1:8000",
        8000,
        "/metrics",
    )
    assert (endpoint.models, endpoint.engine) == (frozenset(), None)


KEYS = st.sampled_from(
    [
        "model",
        "Model",
        "transport",
        "http",
        "port",
        "metrics_port",
        "metrics_path",
        "engine",
        "name",
        "labels",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@given(document=st.dictionaries(KEYS, JSON))
def test_whatever_a_worker_says_the_host_is_the_instance_s(document: Mapping[str, Any]) -> None:
    endpoint = read(document)
    assert endpoint.address == "10.0.0.1"
    assert 1 <= endpoint.port <= 65535
    assert endpoint.metrics_path.startswith("/")


def test_the_engine_comes_from_metadata_else_a_label_else_the_default() -> None:
    labels = {"llm-d.ai/engine-type": "sglang"}
    assert read({"transport": {"http": {"engine": "vllm"}}}, labels=labels).engine == "vllm"
    assert read({}, labels=labels).engine == "sglang"
    assert read({"labels": {"inference.networking.k8s.io/engine-type": "triton"}}).engine == "triton"
    assert read_endpoint(instance(), {}, EndpointDefaults(engine="trtllm-serve")).engine == "trtllm-serve"


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
    ] == [
        [True, True, False],
        [True, True, False],
        [True, False, True],
    ]
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
    await store.follow(events())
    (endpoint,) = store.endpoints
    assert (endpoint.id, endpoint.models, endpoint.reachable) == ("w1", frozenset({"m"}), False)
