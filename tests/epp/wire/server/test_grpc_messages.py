import gzip
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from epp.wire.messages.ext_proc_pb2 import ProcessingRequest
from epp.wire.server.grpc_messages import (
    GrpcStatus,
    MessageReader,
    StatusError,
    inflate,
    percent_encoded,
    prefixed,
)
from epp.wire.server.processor import LARGE, REQUEST_BODY, RESPONSE_BODY, find_body, metadata_behind


@given(st.lists(st.binary(max_size=3000), max_size=6), st.lists(st.integers(0, 4000), max_size=12))
def test_messages_come_out_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    data = prefixed(messages)
    reader = MessageReader(3000)
    found: list[bytes] = []
    for cut in cuts:
        piece, data = data[:cut], data[cut:]
        if piece:
            found += reader.feed(piece)
            assert reader.buffered <= 3005
    if data:
        found += reader.feed(data)
    assert found == messages
    assert not reader.unfinished
    assert reader.buffered == 0


@given(
    st.lists(st.integers(0, 9000), max_size=4),
    st.lists(st.tuples(st.sampled_from([1, 6, 1023, 1024, 3000, 5000]), st.booleans()), max_size=12),
)
def test_what_is_lent_is_copied(sizes: list[int], cuts: list[tuple[int, bool]]) -> None:
    messages = [bytes((65 + at,)) * size for at, size in enumerate(sizes)]
    data = prefixed(messages)
    reader = MessageReader(9000)
    found: list[bytes] = []
    lent: list[bytearray] = []
    for cut, keeps in [*cuts, (len(data), True)]:
        lent.append(bytearray(data[:cut]))
        data = data[cut:]
        pieces = iter([memoryview(lent[-1])])
        while whole := reader.feed_until_message(pieces):
            found += whole
        if keeps:
            reader.copy_lent()
            for piece in lent:
                piece[:] = b"?" * len(piece)
            lent.clear()
    assert found == messages
    assert not reader.unfinished
    assert reader.buffered == 0


def test_a_message_byte_by_byte() -> None:
    reader = MessageReader(100)
    data = prefixed([b"abc", b"", b"de"])
    found = [message for byte in data for message in reader.feed(bytes((byte,)))]
    assert found == [b"abc", b"", b"de"]


def test_a_prefix_alone_is_unfinished() -> None:
    reader = MessageReader(100)
    assert reader.feed(b"\0\0\0\0\2") == []
    assert (reader.unfinished, reader.buffered) == (True, 0)
    assert reader.feed(b"ab") == [b"ab"]
    assert not reader.unfinished


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\0\0\0\0\x65", GrpcStatus.RESOURCE_EXHAUSTED), (b"\1\0\0\0\1a", GrpcStatus.INTERNAL)],
)
def test_what_is_refused_by_its_prefix(data: bytes, status: GrpcStatus) -> None:
    with pytest.raises(StatusError) as caught:
        MessageReader(100).feed(data)
    assert caught.value.status is status


def test_messages_for_people_are_ascii_and_short() -> None:
    assert percent_encoded("a b~") == b"a b~"
    assert percent_encoded("100%\n\u00fc") == b"100%25%0A%C3%BC"
    assert len(percent_encoded("\n" * 5000)) <= 1000


def test_on_a_compressed_stream_each_message_says_whether_it_is() -> None:
    reader = MessageReader(100)
    flags = reader.expect_compressed()
    packed = gzip.compress(b"c" * 500)
    data = prefixed([b"a" * 70]) + b"\1" + len(packed).to_bytes(4, "big") + packed + prefixed([b""])
    found = [message for byte in data for message in reader.feed(bytes((byte,)))]
    assert (found, list(flags)) == ([b"a" * 70, packed, b""], [False, True, False])
    with pytest.raises(StatusError):
        reader.feed(b"\2\0\0\0\1a")


@pytest.mark.parametrize(
    ("packed", "status"),
    [
        (gzip.compress(bytes(101), mtime=0), GrpcStatus.RESOURCE_EXHAUSTED),
        (gzip.compress(bytes(10**7), mtime=0), GrpcStatus.RESOURCE_EXHAUSTED),
        (b"", GrpcStatus.INTERNAL),
        (b"no gzip", GrpcStatus.INTERNAL),
        (gzip.compress(b"abc", mtime=0)[:-1], GrpcStatus.INTERNAL),
        (gzip.compress(b"abc", mtime=0) + b"x", GrpcStatus.INTERNAL),
        (gzip.compress(b"abc", mtime=0)[:-8] + bytes(8), GrpcStatus.INTERNAL),
    ],
)
def test_what_is_refused_by_its_compression(packed: bytes, status: GrpcStatus) -> None:
    with pytest.raises(StatusError) as caught:
        inflate(packed, 100)
    assert caught.value.status is status


def test_a_compressed_message_of_the_largest_size() -> None:
    assert inflate(gzip.compress(b"a" * 100), 100) == b"a" * 100
    assert inflate(gzip.compress(b"", mtime=0), 100) == b""


KINDS = {"request_body": REQUEST_BODY, "response_body": RESPONSE_BODY}
METADATA = ProcessingRequest()
METADATA.metadata_context.filter_metadata["envoy.lb"].update(
    {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
)
BEHIND = METADATA.SerializeToString()


def written(body: bytes, *, ends: bool, kind: str = "request_body") -> bytes:
    message = ProcessingRequest()
    getattr(message, kind).body = body
    getattr(message, kind).end_of_stream = ends
    return message.SerializeToString()


def agrees(message: bytes, kind: str = "request_body", behind: bytes = b"") -> bool:
    """Whether it was read by hand; then protobuf must read the same, and nothing else but what stands behind."""
    found = find_body(message, KINDS[kind], behind)
    if found is None:
        return False
    start, stop, ends = found
    read = ProcessingRequest.FromString(message)
    assert read.WhichOneof("request") == kind
    piece = getattr(read, kind)
    assert (message[start:stop], ends) == (piece.body, piece.end_of_stream)
    alone = ProcessingRequest.FromString(behind)
    getattr(alone, kind).body = message[start:stop]
    getattr(alone, kind).end_of_stream = ends
    assert read == alone
    assert alone.SerializeToString() == read.SerializeToString()  # no fields that are not known either
    return True


@given(
    st.integers(1, 70_000) | st.integers(16_300, 16_500) | st.integers(2_097_000, 2_097_300),
    st.booleans(),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([b"", BEHIND]),
)
def test_what_a_data_plane_writes_is_read(size: int, ends: bool, kind: str, behind: bytes) -> None:
    assert agrees(written(bytes(size), ends=ends, kind=kind) + behind, kind, behind)


@given(st.integers(0, 300), st.booleans())
def test_metadata_are_told_from_all_else_that_may_stand_behind(size: int, ends: bool) -> None:
    message = written(bytes(size), ends=ends, kind="response_body")
    length = ProcessingRequest.FromString(message).response_body.ByteSize()
    assert metadata_behind(message + BEHIND, length) == BEHIND
    for other in (
        b"",
        b"\x50\x01",
        BEHIND + b"\x50\x01",
        b"\x50\x01" + BEHIND,
        BEHIND * 2,
        BEHIND[:-1],
        message,
    ):
        assert metadata_behind(message + other, length) == b"", other
        assert not agrees(message + other, "response_body", BEHIND), other


def varint(value: int, length: int) -> bytes:
    """In so many bytes, or as many as it needs."""
    out = bytearray()
    while value > 0x7F or len(out) + 1 < length:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


TAGS = st.sampled_from([0x0A, 0x10, 0x18, 0x20, 0x22, 0x2A, 0x12, 0x42, 0x50, 0x5A, 0x7A, 0x0D, 0x0B, 0x00])
VALUES = st.one_of(
    st.binary(max_size=5),
    st.integers(LARGE - 20, LARGE + 20).map(bytes),
    st.just(b"\x0a\x00"),
    st.just(b"\x10\x01"),
)
WIDTHS = st.sampled_from([1, 1, 1, 2, 3, 5, 10])


@st.composite
def fields(draw: st.DrawFn, depth: int = 2) -> bytes:
    """Known and unknown ones, some twice, lengths in more bytes than they need."""
    out = b""
    for _ in range(draw(st.integers(1, 3))):
        tag = draw(TAGS)
        if tag & 7 == 2:
            inner = draw(fields(depth - 1)) if depth and draw(st.booleans()) else draw(VALUES)
            out += varint(tag, draw(WIDTHS)) + varint(len(inner), draw(WIDTHS)) + inner
        else:
            out += bytes((tag,)) + varint(draw(st.integers(0, 300)), draw(WIDTHS))
    return out


@given(fields())
def test_other_messages_are_left_to_protobuf_or_read_alike(message: bytes) -> None:
    for kind in KINDS:
        agrees(message, kind)


@given(
    st.integers(LARGE, 20_000),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(-8, 12), st.sampled_from(["set", "insert", "delete"]), st.integers(0, 255)),
        max_size=3,
    ),
    st.binary(max_size=6),
)
def test_a_message_that_was_changed(
    size: int, ends: bool, changes: list[tuple[int, str, int]], after: bytes
) -> None:
    message = bytearray(written(bytes(size), ends=ends))
    for at, change, byte in changes:
        place = at % len(message)
        if change == "set":
            message[place] = byte
        elif change == "insert":
            message.insert(place, byte)
        else:
            del message[place]
    agrees(bytes(message) + after)


def wrapped(inner: bytes) -> bytes:
    return b"\x22" + varint(len(inner), 1) + inner


BODY = b"\x0a" + varint(5000, 1) + bytes(5000)


@pytest.mark.parametrize(
    "message",
    [
        written(bytes(5000), ends=False, kind="response_body"),
        written(bytes(5000), ends=True) + b"\x50\x01",  # observability_mode
        written(bytes(5000), ends=False) + b"\x22\x00",  # the body again, to be merged
        written(bytes(5000), ends=False) + b"\x12\x00",  # another kind, which is the one that counts
        wrapped(BODY + BODY),
        wrapped(BODY + b"\x10\x01\x10\x00"),
        wrapped(BODY + b"\x10\x00"),
        wrapped(BODY + b"\x10\x02"),
        wrapped(b"\x10\x01" + BODY),
        wrapped(BODY + b"\x18\x01"),
        b"\x22" + varint(len(BODY), 4) + BODY,
        wrapped(b"\x0a" + varint(5000, 4) + bytes(5000)),
        b"\xa2\x00" + wrapped(BODY)[1:],
        wrapped(BODY)[:-1],
        b"",
    ],
)
def test_what_protobuf_reads(message: bytes) -> None:
    assert find_body(message, REQUEST_BODY) is None


def test_a_body_that_looks_as_if_it_ended() -> None:
    message = written(bytes(5000) + b"\x10\x01", ends=False)
    assert agrees(message)
    found: Any = find_body(message, REQUEST_BODY)
    assert found[2] is False
    with pytest.raises(DecodeError):
        ProcessingRequest.FromString(message[:-1])
