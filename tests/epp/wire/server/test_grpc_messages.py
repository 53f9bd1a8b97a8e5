import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.wire.server.grpc_messages import (
    GrpcStatus,
    MessageReader,
    StatusError,
    inflate,
    percent_encoded,
    prefixed,
)


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
