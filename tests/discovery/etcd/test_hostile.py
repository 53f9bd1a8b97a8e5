"""What strangers write under the prefix, and secrets where etcd's users may have put them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.etcd.messages.etcd_pb2 import Event, KeyValue, RangeResponse, ResponseHeader, WatchResponse
from discovery.etcd.url import parse_etcd_url
from discovery.etcd.watched_keys import WatchedKeys
from discovery.source import ComponentKey

PREFIX = b"/adsum/prod/decode/"
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


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("etcd://", {"ETCDCTL_ENDPOINTS": "https://root:s3cret@h:2379"}),
        ("etcd://", {"ETCDCTL_ENDPOINTS": "h:2379,root:s3cret@i:2379"}),
        ("etcd://root:s3cret@h/", {}),
        ("etcd://h?password=s3cret", {}),
        ("etcd://h?user=root:s3cret", {}),
        ("etcd://h:0?user=root", {"ETCDCTL_PASSWORD": "s3cret"}),
    ],
)
def test_no_error_quotes_a_password(url: str, environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="etcd://") as raised:
        parse_etcd_url(url, environment)
    assert "s3cret" not in str(raised.value)


@given(st.lists(st.tuples(NAMES, VALUES, st.booleans(), st.booleans()), max_size=12))
def test_whatever_is_written_only_the_valid_record_is_an_instance(
    changes: list[tuple[bytes, bytes, bool, bool]],
) -> None:
    keys = WatchedKeys(ComponentKey("prod", "decode"), PREFIX, reader=None)  # type: ignore[arg-type]
    there: dict[bytes, bytes] = {}
    keys.begin_range()
    keys.add_page(RangeResponse())
    keys.end_range(1)
    for number, (name, value, is_put, fragment) in enumerate(changes, 2):
        event = Event(type=Event.PUT if is_put else Event.DELETE, kv=KeyValue(key=PREFIX + name, value=value))
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
