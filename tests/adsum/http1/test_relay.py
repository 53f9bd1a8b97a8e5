"""A response goes on byte for byte, and its end is found, however it is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adsum.http1.relay import ChunkScanner, Framing, RelayReader
from adsum.http1.response import HttpResponse, ResponseError

HEAD = b"HTTP/1.1 200 OK\r\nX-A: b\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODIES = {
    CHUNKED: b"5\r\nhello\r\n1;x\r\n\r\r\n00\r\nTrailer: 1\r\n\r\n",
    HEAD + b"Content-Length: 5\r\n\r\n": b"hello",
}


class Kept:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, bytes, bool, int | None]] = []
        self.data = b""

    def begin(self, status: int, fields: bytes, framing: Framing) -> None:
        self.heads.append((status, fields, framing.chunked, framing.length))

    def receive(self, data: bytes) -> None:
        self.data += data


@given(st.sampled_from(sorted(BODIES)), st.lists(st.integers(0, 120), max_size=10), st.binary(max_size=3))
def test_all_of_it_passes_and_nothing_after_it(head: bytes, cuts: list[int], after: bytes) -> None:
    whole = head + BODIES[head]
    stream = whole + after
    kept = Kept()
    reader = RelayReader(kept)
    at = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    ended = None
    for a, b in pairwise(at):
        ended = reader.feed(stream[a:b])
        if ended is not None:
            assert b >= len(whole)
            break
    assert isinstance(ended, HttpResponse)
    assert kept.data == BODIES[head]
    assert kept.heads[0][0] == 200
    assert b"X-A: b" in kept.heads[0][1]


@pytest.mark.parametrize(
    "body",
    [b"x\r\n", b"5\r\nhelloX\r\n", b"5\r\nhelloXX", b"-1\r\n", b"f" * 16 + b"\r\n", b"1" * 5000, b"0\r\n" + b"a: b\r\n" * 20_000],
)  # fmt: skip
def test_chunks_that_are_none(body: bytes) -> None:
    reader = RelayReader(Kept())
    with pytest.raises(ResponseError):
        reader.feed(CHUNKED + body)


def test_a_response_without_a_length_ends_with_its_connection() -> None:
    kept = Kept()
    reader = RelayReader(kept)
    assert reader.feed(HEAD + b"\r\nab") is None
    assert reader.feed(b"c") is None
    assert not reader.end().reusable
    assert kept.data == b"abc"


def test_one_that_has_a_length_and_ends_before_is_broken() -> None:
    reader = RelayReader(Kept())
    reader.feed(HEAD + b"Content-Length: 5\r\n\r\nab")
    with pytest.raises(ResponseError, match="before the answer was complete"):
        reader.end()


def test_the_response_to_head_has_no_body() -> None:
    kept = Kept()
    ended = RelayReader(kept, bodiless=True).feed(HEAD + b"Content-Length: 5\r\n\r\n")
    assert ended is not None
    assert ended.reusable
    assert b"Content-Length: 5" in kept.heads[0][1]


def test_the_content_of_chunks() -> None:
    payload: list[bytes] = []
    scanner = ChunkScanner(payload)
    data = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    ends = [scanner.feed(data[at : at + 1]) for at in range(len(data))]
    assert ends == [None] * (len(data) - 1) + [1]
    assert b"".join(payload) == b"abcde"
