"""Revisions, conditions, waiting, and what may be metadata."""

import json
import math
from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.instance import METADATA_LIMIT, InstanceStatus
from registry.document import (
    DocumentResponse,
    Hold,
    MetadataRequest,
    PublishedDocument,
    encode_metadata,
    parse_if_none_match,
    parse_wait,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def ask(
    document: PublishedDocument, known: str | None = None, wait: str | None = None
) -> DocumentResponse | Hold:
    request = MetadataRequest.from_headers(known, f"wait={wait}" if wait else None)
    return document.current.respond(request, can_hold=True)


def answer(
    document: PublishedDocument, known: str | None = None, wait: str | None = None
) -> DocumentResponse:
    answered = ask(document, known, wait)
    assert isinstance(answered, DocumentResponse)
    return answered


def count(document: PublishedDocument) -> int:
    return int(document.current.etag.strip('"').rpartition(".")[2])


def test_answer_names_instance_incarnation_status_and_revision(document: PublishedDocument) -> None:
    document.set_metadata({"model": {"name": "m"}})
    answered = answer(document)
    epoch = document.current.epoch
    assert (answered.status, json.loads(answered.body)) == (200, {"model": {"name": "m"}})
    assert answered.headers["ETag"] == f'"life1.{epoch}.1"'
    assert answered.headers["Content-Type"] == "application/json"
    assert answered.headers["Instance-Id"] == "decode-1"
    assert answered.headers["Instance-Incarnation"] == "life1"
    assert answered.headers["Instance-Status"] == "not_ready"


def test_a_restarted_process_has_another_epoch() -> None:
    epochs = {PublishedDocument.of("decode-1", "life1").current.epoch for _ in range(50)}
    assert len(epochs) == 50
    assert not any("." in epoch for epoch in epochs)


@given(
    st.lists(
        st.one_of(st.sampled_from(InstanceStatus), st.dictionaries(st.text(max_size=3), st.integers())),
        max_size=20,
    )
)
def test_the_revision_moves_with_every_change_and_only_then(
    changes: list[InstanceStatus | dict[str, int]],
) -> None:
    document = PublishedDocument.of("decode-1", "life1")
    heard: list[int] = []
    document.subscribe(lambda: heard.append(count(document)))
    for change in changes:
        before = document.current
        if isinstance(change, InstanceStatus):
            document.set_status(change)
        else:
            document.set_metadata(change)
        changed = (before.status, before.body) != (document.current.status, document.current.body)
        assert count(document) - before.count == int(changed)
    assert heard == list(range(1, len(heard) + 1))
    assert count(document) == len(heard)


def test_a_listener_can_stop() -> None:
    document, heard = PublishedDocument.of("decode-1", "life1"), []
    stop = document.subscribe(lambda: heard.append(1))
    stop()
    document.set_metadata({"a": 1})
    assert heard == []


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ('"{}"', 304),
        ('W/"{}"', 304),
        ('"other", W/"{}"', 304),
        ('"a,b","{}"', 304),
        ("*", 304),
        (' "{}" ', 304),
        ('"other"', 200),
        ('"*"', 200),
        ("{}", 200),
        ("", 200),
        ('"{}x"', 200),
    ],
)
def test_if_none_match(document: PublishedDocument, known: str, status: int) -> None:
    answered = answer(document, known.format(document.current.etag.strip('"')))
    assert answered.status == status
    assert (answered.body == b"") == (status == 304)
    assert answered.headers["ETag"] == document.current.etag


def test_a_known_revision_is_held_and_an_old_one_is_answered_at_once(document: PublishedDocument) -> None:
    old = document.current.etag
    assert ask(document, old, "7") == Hold(7.0)
    document.set_status(InstanceStatus.READY)
    answered = answer(document, old, "7")
    assert (answered.status, answered.headers["Preference-Applied"]) == (200, "wait=7")


def test_nothing_is_held_without_a_condition_without_a_slot_or_while_draining(
    document: PublishedDocument,
) -> None:
    etag = document.current.etag
    refused = [
        answer(document, None, "7"),
        answer(document, etag),
        answer(document, etag, "0"),
        document.current.respond(MetadataRequest.from_headers(etag, "wait=7"), can_hold=False),
    ]
    document.set_status(InstanceStatus.DRAINING)
    refused += [answer(document, etag, "7"), answer(document, document.current.etag, "7")]
    assert [a.status for a in refused if isinstance(a, DocumentResponse)] == [200, 304, 304, 304, 200, 304]
    assert all(isinstance(a, DocumentResponse) and "Preference-Applied" not in a.headers for a in refused)


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0.0),
        ("wait=10", 10.0),
        ("Wait = 10", 10.0),
        ('wait="10"', 10.0),
        ("wait=0.5", 0.5),
        ("respond-async, wait=10", 10.0),
        ('x="a,wait=3", wait=10; y=1', 10.0),
        ("wait=10, wait=99", 10.0),
        ("wait=soon", 0.0),
        ("wait=-1", 0.0),
        ("wait=nan", 0.0),
        ("wait=1e9", 0.0),
        ("wait", 0.0),
        ("waiting=10", 0.0),
        (',,"', 0.0),
    ],
)
def test_prefer_wait(prefer: str | None, seconds: float) -> None:
    assert parse_wait(prefer) == seconds


def test_no_wait_is_longer_than_the_longest() -> None:
    assert MetadataRequest.from_headers('"a"', "wait=999999999").wait == 60.0
    assert MetadataRequest.from_headers('"a"', "wait=9", max_wait=2.5).wait == 2.5


@given(st.text(), st.text())
def test_any_header_is_survived(known: str, prefer: str) -> None:
    request = MetadataRequest.from_headers(known, prefer)
    assert request.etags is not None
    assert 0 <= request.wait <= 60
    assert parse_if_none_match(None) is None


@given(st.dictionaries(st.text(), JSON_VALUES))
def test_metadata_survives_the_way(metadata: dict[str, Any]) -> None:
    assert json.loads(encode_metadata(metadata)) == metadata


def test_any_mapping_is_metadata_and_later_changes_of_it_do_not_reach_the_document(
    document: PublishedDocument,
) -> None:
    inner: dict[str, Any] = {"name": "m"}
    document.set_metadata(MappingProxyType({"model": inner, "mdc": UserDict(a=(1, 2))}))
    inner["name"] = "changed"
    assert json.loads(document.current.body) == {"model": {"name": "m"}, "mdc": {"a": [1, 2]}}


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        (["a"], TypeError, "must be a mapping.*list"),
        ("text", TypeError, "must be a mapping.*str"),
        (None, TypeError, "must be a mapping"),
        ({"a": {1: 2}}, TypeError, r"metadata\['a'\] has the key 1 of type int"),
        ({"a": [0, {1, 2}]}, TypeError, r"metadata\['a'\]\[1\] is of type set"),
        ({"a": b"x"}, TypeError, r"metadata\['a'\] is of type bytes"),
        ({"a": math.nan}, ValueError, r"metadata\['a'\] is nan"),
        ({"a": [-math.inf]}, ValueError, r"metadata\['a'\]\[0\] is -inf"),
        ({"a": "\ud800"}, ValueError, r"metadata\['a'\] is not Unicode"),
        ({"\ud800": 1}, ValueError, "is not Unicode"),
        (CYCLE, ValueError, "contains itself"),
        ({"small": 1, "big": "x" * METADATA_LIMIT}, ValueError, "1048596 bytes.*1048576.*'big'"),
    ],
)
def test_bad_metadata_names_its_place_and_the_old_document_stays(
    document: PublishedDocument, metadata: Any, error: type[Exception], words: str
) -> None:
    document.set_metadata({"good": True})
    before = document.current
    with pytest.raises(error, match=words):
        document.set_metadata(metadata)
    assert document.current is before


def test_the_largest_document_fits() -> None:
    frame = len(encode_metadata({"a": ""}))
    assert len(encode_metadata({"a": "x" * (METADATA_LIMIT - frame)})) == METADATA_LIMIT
