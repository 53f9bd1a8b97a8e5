"""The set that etcd's answers make, and what strangers write under the prefix."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.etcd.messages.etcd_pb2 import Event, KeyValue, RangeResponse, ResponseHeader, WatchResponse
from discovery.etcd.watched_keys import (
    StoreReplacedError,
    WatchedKeys,
    component_of,
    component_prefix,
    range_end,
)
from discovery.metadata.client import MetadataClient
from discovery.source import ComponentKey
from tests.discovery.etcd.scripted_etcd import found, record, told

KEY = ComponentKey("dynamo", "decode")
PREFIX = component_prefix("/adsum/", KEY)


def watched(*kvs: KeyValue, revision: int = 5) -> WatchedKeys:
    keys = WatchedKeys(KEY, PREFIX, MetadataClient())
    keys.begin_range()
    keys.add_page(found(revision, *kvs))
    keys.end_range(revision)
    return keys


def test_only_ready_workers_are_instances() -> None:
    snapshot = watched(record("a"), record("b", "not_ready"), record("c", "draining")).snapshot()
    assert set(snapshot.instances) == {"a"}
    assert set(snapshot.known) == {"a", "b", "c"}


def test_a_second_range_keeps_what_did_not_change_and_drops_what_is_gone() -> None:
    keys = watched(record("stays"), record("goes"), KeyValue(key=PREFIX + b"junk", value=b"x"))
    before = keys.snapshot()
    keys.begin_range()
    keys.add_page(found(9, record("stays"), record("comes")))
    keys.end_range(9)
    after = keys.snapshot()
    assert set(after.instances) == {"stays", "comes"}
    assert after.instances["stays"] is before.instances["stays"]
    assert after.others == ()
    assert keys.revision == 9


def test_signs_of_life_are_no_change() -> None:
    keys = watched(record("a"))
    assert not keys.apply(told(7))
    assert keys.revision == 7
    assert keys.apply(told(8, deleted=["a"]))
    assert not keys.apply(told(8))


def test_a_record_that_becomes_invalid_is_no_instance_until_it_is_mended() -> None:
    keys = watched(record("a"))
    keys.apply(told(6, [KeyValue(key=PREFIX + b"a", value=b"{}")]))
    assert not keys.snapshot().known
    assert [candidate.id for candidate in keys.snapshot().others] == ["a"]
    keys.apply(told(7, [record("a")]))
    assert set(keys.snapshot().instances) == {"a"}
    assert not keys.snapshot().others
    keys.apply(told(8, [record("a", "draining")]))
    assert not keys.snapshot().instances


def test_a_revision_that_goes_back_is_refused() -> None:
    with pytest.raises(StoreReplacedError, match="went back from 5 to 4"):
        watched().apply(told(4, [record("a")]))


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=80)), max_size=8))
def test_any_bytes_are_a_reason_and_no_fault(stored: list[tuple[bytes, bytes]]) -> None:
    keys = watched(*(KeyValue(key=PREFIX + key, value=value) for key, value in stored), record("a"))
    assert set(keys.snapshot().known) == {"a"}
    for candidate in keys.snapshot().others:
        assert candidate.id.isprintable()
        assert candidate.reason is not None
        assert candidate.reason.isprintable()


def test_what_a_reason_quotes_is_escaped_and_cut() -> None:
    label = "\\u001b[31m" + "x" * 5000
    value = record("w-0").value.replace(b'"port"', b'"labels":{"%s":5},"port"' % label.encode())
    [other] = watched(KeyValue(key=PREFIX + b"w-0", value=value)).snapshot().others
    assert other.reason is not None
    assert other.reason.startswith("its record cannot be used: not a valid record: labels.\\x1b[31mxxx")
    assert len(other.reason) < 500


def test_a_key_of_a_megabyte_is_remembered_by_its_beginning() -> None:
    [other] = watched(KeyValue(key=PREFIX + b"x" * 1_000_000, value=b"{}")).snapshot().others
    assert len(other.id) < 250


def test_a_prefix_ends_before_its_neighbour() -> None:
    assert PREFIX == b"/adsum/dynamo/decode/"
    assert PREFIX < PREFIX + b"\xff" < range_end(PREFIX) <= b"/adsum/dynamo/decode0"


@pytest.mark.parametrize(
    ("key", "component"),
    [
        (b"/adsum/dynamo/decode/w-0", KEY),
        (b"/adsum/dynamo/decode", None),
        (b"/adsum/dynamo/decode/w/0", None),
        (b"/adsum/Dynamo/decode/w-0", None),
        (b"/adsum/\xff/decode/w-0", None),
    ],
)
def test_the_component_of_a_key(key: bytes, component: ComponentKey | None) -> None:
    assert component_of("/adsum/", key) == component


STRANGERS = b"/adsum/prod/decode/"
GOOD: dict[str, Any] = {
    "version": 1,
    "instance_id": "good",
    "namespace": "prod",
    "component": "decode",
    "incarnation": "a",
    "address": "10.0.0.1",
    "port": 8000,
    "status": "ready",
}
VALUES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            json.dumps(GOOD | change).encode()
            for change in (
                {},
                {"status": "draining"},
                {"port": -1},
                {"port": 1e400},
                {"address": "http://elsewhere/"},
                {"address": "\ud800"},
                {"instance_id": "../../other"},
                {"labels": {"a": 1}},
                {"labels": {f"l{n}": "x" * 1000 for n in range(100)}},
                {"version": 2},
            )
        ]
        + [b"[" * 100_000, b"{}", b"null", b'{"version": 1' * 1000]
    ),
)
NAMES = st.one_of(
    st.sampled_from(
        [b"good", b"", b"/", b"a/b", b"\xff", b"x" * 2000, "ü".encode(), b"\x00\x1b[2J", b"<script>"]
    ),
    st.binary(max_size=8),
)


@given(st.lists(st.tuples(NAMES, VALUES, st.booleans(), st.booleans()), max_size=12))
def test_whatever_is_written_only_the_valid_record_is_an_instance(
    changes: list[tuple[bytes, bytes, bool, bool]],
) -> None:
    keys = WatchedKeys(ComponentKey("prod", "decode"), STRANGERS, reader=None)  # type: ignore[arg-type]
    there: dict[bytes, bytes] = {}
    keys.begin_range()
    keys.add_page(RangeResponse())
    keys.end_range(1)
    for number, (name, value, is_put, fragment) in enumerate(changes, 2):
        event = Event(
            type=Event.PUT if is_put else Event.DELETE, kv=KeyValue(key=STRANGERS + name, value=value)
        )
        there.pop(name[:512], None)
        if is_put:
            there[name[:512]] = value
        keys.apply(WatchResponse(header=ResponseHeader(revision=number), events=[event], fragment=fragment))
    snapshot = keys.snapshot()
    valid = json.dumps(GOOD).encode(), json.dumps(GOOD | {"status": "draining"}).encode()
    known = [candidate.id for candidate in snapshot.candidates if candidate.instance is not None]
    assert known == (["good"] if there.get(b"good") in valid else [])
    assert len(snapshot.candidates) == len(there)
    assert all(
        len(one.id) <= 700 and one.id.isprintable() and len(one.reason or "") < 600
        for one in snapshot.candidates
    )
