import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from discovery import Instance, MetadataUnavailableError, WorkerUnreachableError
from discovery.metadata.document import MetadataDict, read_document, read_etag, read_ready

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
