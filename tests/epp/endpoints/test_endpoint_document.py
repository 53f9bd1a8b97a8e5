from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import NO_ADAPTERS, NO_NUMBERS, Adapters, Column, Endpoint, EndpointPool
from epp.endpoints.endpoint_document import EndpointDefaults, read_endpoint
from tests.epp.endpoints.test_datastore import instance


def read(document: Mapping[str, Any], **fields: Any) -> Endpoint:
    return read_endpoint(instance(**fields), document, EndpointDefaults())


def test_an_instance_without_metadata() -> None:
    endpoint = read({}, zone="z", node="n", labels={"a": "b"})
    assert (endpoint.destination, endpoint.metrics_port, endpoint.metrics_path) == (
        "10.0.0.1:8000",
        8000,
        "/metrics",
    )
    assert (endpoint.models, endpoint.engine, endpoint.zone, endpoint.node) == (frozenset(), None, "z", "n")
    assert endpoint.labels == {"a": "b"}


def test_the_port_of_a_rank_is_the_pools_whatever_its_document_says() -> None:
    """One document may describe all ranks of a Pod; its metrics port may be common to them."""
    document = {"transport": {"http": {"port": 9000, "metrics_port": 9100}}}
    endpoint = read(document, port=8001, rank=1)
    assert (endpoint.port, endpoint.metrics_port) == (8001, 9100)
    assert read({}, port=8001, rank=1).metrics_port == 8001


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


def test_the_port_that_serves_is_the_metadata_s_else_the_named_one_else_the_instance_s() -> None:
    defaults = EndpointDefaults(serving_port_name="api")
    pod = instance(ports={"http": 8000, "api": 9000})
    said = {"transport": {"http": {"port": 7000}}}
    assert read_endpoint(pod, said, defaults).port == 7000
    assert read_endpoint(pod, {}, defaults).port == 9000
    assert read_endpoint(pod, {}, EndpointDefaults()).port == 8000
    assert read_endpoint(instance(), {}, defaults).port == 8000


def test_the_engine_comes_from_metadata_else_a_label_else_the_default() -> None:
    labels = {"llm-d.ai/engine-type": "sglang"}
    assert read({"transport": {"http": {"engine": "vllm"}}}, labels=labels).engine == "vllm"
    assert read({}, labels=labels).engine == "sglang"
    assert read({"labels": {"inference.networking.k8s.io/engine-type": "triton"}}).engine == "triton"
    assert read_endpoint(instance(), {}, EndpointDefaults(engine="trtllm-serve")).engine == "trtllm-serve"


@pytest.mark.parametrize("name", ["port", "metrics_port"])
def test_metadata_move_nothing_to_a_port_of_the_host(name: str) -> None:
    endpoint = read({"transport": {"http": {name: 22}}})
    assert (endpoint.port, endpoint.metrics_port) == (8000, 8000)
    [line] = endpoint.ignored
    assert f"metadata transport.http.{name} is 22, below 1024 and not the registered port" in line


@pytest.mark.parametrize(
    ("said", "is_read"),
    [
        ({"port": 5557}, (5557, None, "", 1)),
        ({"port": "5557", "replay_port": 5558, "topic": "kv@", "ranks": 2}, (5557, 5558, "kv@", 2)),
        ({"port": 5557, "topic": "x" * 257, "ranks": True}, (5557, None, "", 1)),
        ({"port": 5557, "ranks": 65}, (5557, None, "", 1)),
        ({"port": 5557, "replay_port": "tcp://10.9.9.9:22"}, (5557, None, "", 1)),
        ({"replay_port": 5558}, None),
        ({"port": 22}, None),
        ({"port": "tcp://10.9.9.9:5557"}, None),
        ({"port": 65535, "ranks": 2}, None),
        ({"port": 5557, "replay_port": 65535, "ranks": 2}, None),
        ("tcp://10.9.9.9:5557", None),
    ],
)
def test_a_worker_says_the_ports_of_its_events_and_no_host(said: Any, is_read: Any) -> None:
    assert read({"transport": {"kv_events": said}}).kv_events == is_read


def test_a_rank_s_events_come_from_its_own_port() -> None:
    said = {"transport": {"kv_events": {"port": 5557, "replay_port": 6557, "ranks": 4}}}
    found = read_endpoint(instance(rank=2), said, EndpointDefaults())
    assert found.kv_events == (5559, 6559, "", 1)
    low = {"transport": {"kv_events": {"port": 80, "ranks": 2}}}
    [line] = read_endpoint(instance(ports={"http": 80}), low, EndpointDefaults()).ignored
    assert "names the port 81 for a rank" in line


def endpoint(address: str = "10.0.0.1", port: int = 8000) -> Endpoint:
    return Endpoint(id="w", incarnation="a", address=address, port=port, metrics_port=port)


@pytest.mark.parametrize(
    ("address", "destination"), [("10.0.0.1", "10.0.0.1:8000"), ("fd00::1", "[fd00::1]:8000")]
)
def test_a_destination_has_ipv6_in_brackets(address: str, destination: str) -> None:
    assert endpoint(address).destination == destination


def test_endpoints_are_equal_only_to_themselves() -> None:
    one, other = endpoint(), endpoint()
    assert one != other
    assert len({one, other}) == 2


def test_a_pool_is_columns() -> None:
    numbers = np.repeat(NO_NUMBERS, 3, axis=1)
    numbers[Column.WAITING] = [1, 2, 3]
    numbers[Column.SCRAPED_AT, 0] = 4.0
    adapters = [Adapters(frozenset({name})) for name in "abc"]
    pool = EndpointPool([endpoint(port=8000 + i) for i in range(3)], numbers, adapters, now=10.0)
    assert pool.waiting.tolist() == [1, 2, 3]
    assert pool.age.tolist() == [6.0, np.inf, np.inf]
    assert pool.reachable.all()
    taken = pool.select(np.array([True, False, True]))
    assert taken.waiting.tolist() == [1, 3]
    assert [one.port for one in taken.endpoints] == [8000, 8002]
    assert taken.adapters == (adapters[0], adapters[2])
    assert taken.age.tolist() == [6.0, np.inf]


def test_to_take_all_is_to_take_the_pool_itself() -> None:
    pool = EndpointPool([endpoint()], NO_NUMBERS, [NO_ADAPTERS], now=0.0)
    assert pool.select(np.array([True])) is pool
    assert len(pool.select(np.array([False]))) == 0


def test_three_looks_may_be_missed() -> None:
    numbers = np.repeat(NO_NUMBERS, 4, axis=1)
    numbers[Column.SCRAPED_AT, :3] = [9.9, 9.0, 9.0]
    numbers[Column.PERIOD, :3] = [0.05, 0.05, 0.4]
    pool = EndpointPool([endpoint()] * 4, numbers, [NO_ADAPTERS] * 4, now=10.0)
    assert pool.fresh(0.2).tolist() == [True, False, True, False]


def pool_late_at(*late_at: float, now: float = 10.0) -> EndpointPool:
    numbers = np.repeat(NO_NUMBERS, len(late_at), axis=1)
    numbers[Column.LATE_AT] = late_at
    return EndpointPool([endpoint()] * len(late_at), numbers, [NO_ADAPTERS] * len(late_at), now)


@pytest.mark.parametrize(
    ("late_at", "late"),
    [
        ((9.9, 10.0, 10.1), [True, False, False]),
        ((10.0, 10.1), None),
        ((9.0, 11.0), [True, False]),
        ((9.0, 9.0, 11.0), None),
        ((9.0, 9.9, 9.9, 11.0), [True, False, False, False]),
        ((9.9, 9.9, 9.9, 11.0), None),
        ((9.0,), None),
        ((9.0, np.inf, np.inf), None),
        ((9.0, 11.0, np.inf), [True, False, False]),
        ((), None),
    ],
    ids=[
        "one", "none", "half of them", "more than half", "one was late before", "we stood still", "the only one", "the only one that is known",
        "half of those that are known", "no endpoint",
    ],
)  # fmt: skip
def test_who_is_late(late_at: tuple[float, ...], late: list[bool] | None) -> None:
    found = pool_late_at(*late_at).late()
    assert (found if found is None else found.tolist()) == late


def test_nobody_is_late_before_the_time_that_a_pool_knows_of() -> None:
    pool = pool_late_at(9.0, 11.0)
    pool.punctual_until = 10.0
    assert pool.late() is None
