from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.metadata.known_keys import ignored_keys

GOOD = {
    "model": {
        "name": "m",
        "type": "chat",
        "aliases": ["n"],
        "adapters": ["l"],
        "runtime_config": {"max_model_len": 1},
    },
    "transport": {
        "http": {"port": 8000, "metrics_port": "9000", "metrics_path": "/metrics", "engine": "vllm"}
    },
    "mdc": {"anything": 1},
    "labels": {"llm-d.ai/role": "decode"},
}


@pytest.mark.parametrize(
    "document",
    [
        {},
        GOOD,
        {"Model": GOOD["model"], "Transport": GOOD["transport"], "MDC": {}},
        {"kv_store": {"port": "x"}, "version": "1", "zone": [1], "x" * 10_000: 1},
        {"model": None, "transport": {"http": {"port": None}}},
        {"model": {"quantization": "fp8"}, "transport": {"grpc": {"prot": 1}}},
    ],
)
def test_what_is_right_or_the_worker_s_own_says_nothing(document: dict[str, Any]) -> None:
    assert list(ignored_keys(document)) == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"modle": {"name": "m"}}, "'modle' is not a known key, did you mean model?"),
        ({"Labels": {}}, "'Labels' is not a known key, did you mean labels?"),
        ({"transprot": {}}, "'transprot' is not a known key, did you mean transport?"),
        ({"transport": {"htpp": {}}}, "transport.'htpp' is not a known key, did you mean transport.http?"),
        ({"transport": {"kv_event": {}}}, "transport.'kv_event' is not a known key, did you mean transport.kv_events?"),
        ({"transport": {"kv_events": {"ranks": 65}}}, "transport.kv_events.ranks is not a number from 1 to 64; ignored"),
        ({"transport": {"kv_events": {"port": "tcp://h:1"}}}, "transport.kv_events.port is not a port from 1 to 65535; ignored"),
        ({"transport": {"http": {"prot": 1}}}, "transport.http.'prot' is not a known key, did you mean transport.http.port?"),
        ({"Model": {"adapter": ["x"]}}, "Model.'adapter' is not a known key, did you mean Model.adapters?"),
        ({"transport": {"http": {"port": "http"}}}, "transport.http.port is not a port from 1 to 65535; ignored"),
        ({"transport": {"http": {"port": 8000.0}}}, "transport.http.port is not a port from 1 to 65535; ignored"),
        ({"transport": {"http": {"port": True}}}, "transport.http.port is not a port from 1 to 65535; ignored"),
        ({"transport": {"http": {"metrics_path": "metrics"}}}, "transport.http.metrics_path is not a path"),
        ({"transport": []}, "transport is not an object; ignored"),
        ({"model": "m"}, "model is not an object; ignored"),
        ({"model": {"name": ["m"]}}, "model.name is not a string; ignored"),
        ({"model": {"adapters": "l"}}, "model.adapters is not a list of strings; ignored"),
        ({"model": {"adapters": ["l", 7]}}, "model.adapters is not a list of strings; ignored"),
        ({"labels": {"role": 7}}, "labels has 'role' with a value that is no string; ignored"),
    ],
)  # fmt: skip
def test_what_was_meant_and_is_ignored_is_said(document: dict[str, Any], said: str) -> None:
    [warning] = ignored_keys(document)
    assert warning.startswith(said)


def test_a_key_cannot_forge_a_line() -> None:
    [warning] = ignored_keys({"model\n": 1})
    assert "\n" not in warning


def test_thousands_of_keys_are_not_all_compared() -> None:
    assert len(list(ignored_keys({f"model{number}": 1 for number in range(10_000)}))) <= 100


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["model", "Model", "transport", "labels", "mdc", "modle"]), JSON))
def test_any_document_is_judged(document: dict[str, Any]) -> None:
    assert all(isinstance(warning, str) for warning in ignored_keys(document))
