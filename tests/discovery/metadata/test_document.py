import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from discovery import Instance, MetadataUnavailableError, WorkerUnreachableError
from discovery.metadata.document import MetadataDict, read_document, read_etag, read_ready
from discovery.metadata.known_keys import ignored_keys

INSTANCE = Instance("a", "n", "c", "10.0.0.1", 80, "one")


def headers(**more: str) -> CIMultiDict[str]:
    return CIMultiDict(
        {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in more.items()}
    )


@pytest.mark.parametrize(
    ("written", "other"), [("model", "Model"), ("Transport", "transport"), ("mdc", "MDC")]
)
def test_both_spellings_are_read_alike(written: str, other: str) -> None:
    metadata = MetadataDict({written: 1, "else": 2})
    assert metadata[other] == metadata[written] == metadata.get(other) == 1
    assert other in metadata
    assert metadata.get("Else") is None
    assert "ELSE" not in metadata
    with pytest.raises(KeyError, match="Else"):
        metadata["Else"]


def test_an_exact_key_wins_over_its_other_spelling() -> None:
    assert MetadataDict({"model": 1, "Model": 2})["Model"] == 2


def test_an_answer_that_names_the_instance_is_verified() -> None:
    named = headers(Instance_Id="a", Instance_Incarnation="one", ETag='"one.e.3"')
    document = read_document(INSTANCE, named, b'{"x": 1}')
    assert document.verified
    assert document.revision == "one.e.3"
    assert document.metadata() == {"x": 1}


def test_absent_identity_is_accepted_and_not_verified() -> None:
    document = read_document(INSTANCE, headers(), b"{}")
    assert not document.verified
    assert document.revision is not None
    assert document.revision.startswith("sha256:")


@pytest.mark.parametrize("wrong", [{"Instance_Id": "b"}, {"Instance_Incarnation": "two"}])
def test_another_instances_answer_is_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(WorkerUnreachableError, match="expected"):
        read_document(INSTANCE, headers(**wrong), b"{}")


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        ("text/html", b"<html>", "content type 'text/html'"),
        ("", b"{}", "content type"),
        ("application/json", b"[1]", "not a JSON object"),
        ("application/json", b"{", "not a JSON object"),
        ("application/json", b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        ("application/json", b'{"a": "' + b"x" * 1024 * 1024 + b'"}', "more than 1048576 bytes"),
    ],
)
def test_an_invalid_document_is_rejected_with_the_reason(content_type: str, body: bytes, reason: str) -> None:
    with pytest.raises(MetadataUnavailableError, match=reason):
        read_document(INSTANCE, CIMultiDict({"Content-Type": content_type}), body)


def test_each_call_returns_a_new_dict() -> None:
    document = read_document(INSTANCE, headers(), b'{"x": {}}')
    document.metadata()["x"]["y"] = 1
    assert document.metadata() == {"x": {}}


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('"a.b.1"', "a.b.1"),
        ('W/"a"', "a"),
        ('"\u00fc"', "\u00fc"),
        ("", None),
        ('""', None),
        ("a.b.1", None),
        ('"a b"', None),
        ('"a"b"', None),
        ('"a\x01"', None),
        ('"a\x9b"', None),
        ('"\udcff"', None),
    ],
)
def test_entity_tags(sent: str, read: str | None) -> None:
    assert read_etag(headers(ETag=sent)) == read


@pytest.mark.parametrize(
    ("word", "is_ready"), [("ready", True), ("not_ready", False), ("draining", False), ("odd", True)]
)
def test_the_status_header(word: str, is_ready: bool) -> None:
    assert read_ready(headers(Instance_Status=word)) is is_ready


@given(st.binary(max_size=64))
def test_no_bytes_make_it_fail_in_another_way(body: bytes) -> None:
    with contextlib.suppress(MetadataUnavailableError):
        read_document(INSTANCE, headers(), body)


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
