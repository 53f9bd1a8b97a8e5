from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
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
