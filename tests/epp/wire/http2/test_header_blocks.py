import tracemalloc

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from epp.wire.http2.frames import BrokenConnectionError
from epp.wire.http2.header_blocks import (
    HeaderBlocks,
    Http2Request,
    MalformedRequestError,
    check_trailers,
    literal,
    parse_timeout,
)

USUAL = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/B"),
    (b":authority", b"epp"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]


def blocks() -> HeaderBlocks:
    return HeaderBlocks(64 * 1024)


def without_table(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


def test_what_a_server_asks_of_a_request() -> None:
    extra = [(b"grpc-timeout", b"2S"), (b"content-length", b"7"), (b"grpc-encoding", b"gzip")]
    request = blocks().request(without_table(USUAL + extra))
    assert request == Http2Request(
        method=b"POST",
        path=b"/a/B",
        content_type=b"application/grpc",
        encoding=b"gzip",
        timeout=2.0,
        content_length=7,
    )


def test_the_same_block_is_decoded_once_while_the_table_is_untouched() -> None:
    decoder, encoder = blocks(), Encoder()
    first, second = bytes(encoder.encode(USUAL)), bytes(encoder.encode(USUAL))
    decoder.request(first)
    known = decoder.request(second)
    assert decoder.request(second) is known
    other = bytes(encoder.encode([*USUAL, (b"traceparent", b"00-1")]))
    decoder.request(other)
    again = bytes(encoder.encode(USUAL))
    assert again != second, "the encoder's indexes have moved: the old bytes mean something else"
    assert decoder.request(again) == known


def test_a_cached_block_is_not_believed_after_the_table_changed() -> None:
    """The same bytes, another meaning: index 62 is whatever was added last."""
    decoder = blocks()

    def added(path: bytes) -> bytes:
        return b"\x40" + literal(b":path", path)[1:]

    pseudo = without_table(USUAL[:2])
    decoder.request(pseudo + added(b"/one"))
    assert decoder.request(pseudo + b"\xbe").path == b"/one"
    assert decoder.request(pseudo + b"\xbe").path == b"/one"
    decoder.request(pseudo + added(b"/two"))
    assert decoder.request(pseudo + b"\xbe").path == b"/two"
    # the table emptied, and as large as before
    decoder.request(b"\x20\x3f\xe1\x1f" + pseudo + added(b"/three"))
    assert decoder.request(pseudo + b"\xbe").path == b"/three"


@given(st.lists(st.tuples(st.sampled_from([b"/a", b"/b", b"/c"]), st.binary(max_size=3)), max_size=30))
def test_with_or_without_a_cache_blocks_mean_the_same(requests: list[tuple[bytes, bytes]]) -> None:
    encoder, decoder = Encoder(), blocks()
    for path, trace in requests:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path)]
        block = bytes(encoder.encode([*fields, (b"content-type", trace.hex().encode())]))
        for _ in range(1):
            request = decoder.request(block)
            assert (request.path, request.content_type) == (path, trace.hex().encode())


@pytest.mark.parametrize(
    "fields",
    [
        [*USUAL, (b"Upper", b"x")],
        [*USUAL, (b"", b"x")],
        [*USUAL, (b"a b", b"x")],
        [*USUAL, (b"a:b", b"x")],
        [*USUAL, (b"x", b"a\r\nb")],
        [*USUAL, (b"x", b"a\0")],
        [*USUAL, (b"connection", b"close")],
        [*USUAL, (b"transfer-encoding", b"chunked")],
        [*USUAL, (b"te", b"gzip")],
        [*USUAL, (b":path", b"/b")],
        [*USUAL, (b":late", b"x")],
        [(b":method", b"POST"), *USUAL],
        [(b":status", b"200"), *USUAL],
        USUAL[1:],
        [field for field in USUAL if field[0] != b":path"],
        [(b":path", b"") if field[0] == b":path" else field for field in USUAL],
        [*USUAL, (b"content-length", b"-1")],
        [*USUAL, (b"content-length", b"9" * 30)],
    ],
)
def test_malformed_requests(fields: list[tuple[bytes, bytes]]) -> None:
    assert blocks().request(without_table(fields)).malformed


def test_a_tunnel_has_neither_scheme_nor_path() -> None:
    request = blocks().request(without_table([(b":method", b"CONNECT"), (b":authority", b"a:1")]))
    assert (request.malformed, request.method, request.path) == (None, b"CONNECT", b"")


@pytest.mark.parametrize(
    "block", [b"\xff\xff\xff\xff\xff\xff", b"\xc0", b"\x00\x05ab", b"\x40", b"\x3f\xff\xff\xff"]
)
def test_what_breaks_the_table(block: bytes) -> None:
    with pytest.raises(BrokenConnectionError):
        blocks().request(block)


def test_a_list_that_is_too_large() -> None:
    decoder = HeaderBlocks(1000)
    with pytest.raises(BrokenConnectionError):
        decoder.request(without_table([*USUAL, (b"x", b"y" * 1000)]))


def test_trailers() -> None:
    check_trailers([(b"grpc-status", b"0")])
    with pytest.raises(MalformedRequestError):
        check_trailers([(b":status", b"200")])


@given(st.binary(max_size=400))
def test_literals_are_what_hpack_reads(value: bytes) -> None:
    from hpack import Decoder

    assert Decoder().decode(literal(b"x", value), raw=True) == [(b"x", value)]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"250m", 0.25),
        (b"7u", 7e-6),
        (b"9n", 9e-9),
        (b"99999999S", 99_999_999),
        (b"0m", 0),
        *((broken, None) for broken in (None, b"", b"1", b"S", b"-1S", b"123456789S", b"1d", b"1S\n")),
    ],
)
def test_timeouts(written: bytes | None, seconds: float | None) -> None:
    assert parse_timeout(written) == (None if seconds is None else pytest.approx(seconds))


def test_what_is_kept_of_a_connections_blocks_is_little() -> None:
    """A peer may send another block each time, on each of 2,048 connections, and then say nothing more."""
    tracemalloc.start()
    try:
        decoding = blocks()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1_000):
            path = b"/%d" % number + b"x" * 850
            decoding.request(
                without_table([(name, path if name == b":path" else value) for name, value in USUAL])
            )
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept - before < 64 * 1024
