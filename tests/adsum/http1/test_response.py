"""A response is read, and goes on byte for byte; its end is found, however it is cut."""

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adsum.http1.relay import Framing, RelayReader
from adsum.http1.response import (
    ChunkScanner,
    HttpResponse,
    IncompleteResponseError,
    ResponseError,
    ResponseReader,
    ResponseTooLargeError,
)

OK = b"HTTP/1.1 200 OK\r\n"


def read(*pieces: bytes, limit: int = 100) -> HttpResponse | None:
    reader = ResponseReader(limit)
    answer = None
    for piece in pieces:
        assert answer is None
        answer = reader.feed(piece)
    return answer


def whole(raw: bytes, limit: int = 100) -> tuple[int, bytes, bool]:
    answer = read(raw, limit=limit)
    assert answer is not None
    return answer.status, bytes(answer.body), answer.reusable


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", (200, b"abc", True)),
        (OK + b"content-length:3\r\nDate: x\r\n\r\nabc", (200, b"abc", True)),
        (OK + b"content-length: 3, 3\r\n\r\nabc", (200, b"abc", True)),
        (OK + b"Content-Length: 0\r\n\r\n", (200, b"", True)),
        (OK + b"Content-Length: 3\r\nConnection: Close\r\n\r\nabc", (200, b"abc", False)),
        (OK + b"Content-Length: 3\r\nConnection: x, close\r\n\r\nabc", (200, b"abc", False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", (200, b"abc", False)),
        (b"HTTP/1.0 200\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", (200, b"abc", True)),
        (OK + b"Content-Length: 3\r\n\r\nabcMORE", (200, b"abc", False)),
        (b"HTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\nx", (503, b"x", True)),
        (b"HTTP/1.1 204 No\r\n\r\n", (204, b"", True)),
        (b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n", (304, b"", True)),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", (200, b"x", True)),
        (OK + b"Content-Encoding: identity\r\nContent-Length: 1\r\n\r\nx", (200, b"x", True)),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", (200, b"abc", True)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA \r\n0123456789\r\n0\r\n\r\n",
         (200, b"abc0123456789", True)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n", (200, b"x", True)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nMORE", (200, b"x", False)),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n0\r\n\r\n", (200, b"", True)),
    ],
)  # fmt: skip
def test_what_is_read(raw: bytes, expected: tuple[int, bytes, bool]) -> None:
    assert whole(raw) == expected
    if expected[2]:  # however it is cut
        for cut in range(1, len(raw)):
            answer = read(raw[:cut], raw[cut:])
            assert answer is not None
            assert (answer.status, bytes(answer.body), answer.reusable) == expected
        reader = ResponseReader(100)
        assert [reader.feed(raw[at : at + 1]) for at in range(len(raw))][-1] is not None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/2 200\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "status 101"),
        (OK + b"x" * 70_000, "header fields take more"),
        (OK + b"a: " + b"x" * 70_000 + b"\r\n\r\n", "header fields take more"),
        (OK + b"Content-Length: x\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: -1\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: 101\r\n\r\n", "more than 100 bytes"),
        (OK + b"\r\n" + b"x" * 101, "more than 100 bytes"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding"),
        (OK + b"Content-Encoding: gzip\r\n\r\n", "encoded (gzip)"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "how long"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "how long"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5000, "how long"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n", "longer than its size line says"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n65\r\n", "more than 100 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 101, "more than 100 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x" * 70_000, "trailer fields take more"),
    ],
)
def test_what_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ResponseError) as caught:
        read(raw)
    assert said in str(caught.value)
    assert isinstance(caught.value, ResponseTooLargeError) == (said == "more than 100 bytes")


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader(100)
    assert reader.feed(OK + b"\r\nab") is None
    assert reader.feed(b"c") is None
    answer = reader.end()
    assert (bytes(answer.body), answer.reusable) == (b"abc", False)


@given(
    body=st.lists(st.binary(min_size=1, max_size=20), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=5),
)
def test_chunks_are_put_together_however_they_are_cut(body: list[bytes], cuts: list[int]) -> None:
    raw = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    raw += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body) + b"0\r\n\r\n"
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    answer = read(*(raw[a:b] for a, b in itertools.pairwise(edges)), limit=1000)
    assert answer is not None
    assert bytes(answer.body) == b"".join(body)


@given(
    raw=st.binary(max_size=60), head=st.sampled_from([b"", OK, OK + b"Transfer-Encoding: chunked\r\n\r\n"])
)
def test_any_bytes_are_an_answer_or_refused_or_not_whole(raw: bytes, head: bytes) -> None:
    try:
        answer = read(head + raw)
    except ResponseError:
        return
    assert answer is None or len(answer.body) <= 100


def test_a_body_in_very_many_pieces_is_refused() -> None:
    raw = OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000
    with pytest.raises(ResponseError, match="chunks"):
        read(raw, limit=1_000_000)


def test_its_fields_are_asked_for_in_any_case_and_keep_theirs() -> None:
    answer = read(OK + b'ETag: "aB.c.1"\r\nX-A: 1\r\nx-a:2 \r\nX-B: \xff\r\nContent-Length: 0\r\n\r\n')
    assert answer is not None
    fields = answer.fields()
    assert fields.get("etag") == fields.get("ETag") == '"aB.c.1"'
    assert (fields.get("X-A"), fields.get("X-B"), fields.get("X-C")) == ("1, 2", "\udcff", None)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"no colon\r\n", "not a header field"),
        (b": no name\r\n", "not a header field"),
        (b"a : b\r\n", "not a header field"),
        (b"a: b\r\n folded\r\n", "not a header field"),
        (b"a: b\rc: d\r\n", "not a header field"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n", "both Content-Length"),
    ],
)
def test_what_only_a_strict_reader_refuses(head: bytes, said: str) -> None:
    with pytest.raises(ResponseError, match=said):
        ResponseReader(100, strict=True).feed(OK + head + b"\r\n")
    ResponseReader(100).feed(OK + head + b"\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"A: b\r\n",
        b"a:\r\nb: c: d\r\n",
        b"x-a!#$%&'*+-.^_`|~1: \xff\t\r\n",
        b"Content-Length: 0\r\na: b\r\n",
    ],
)
def test_a_strict_reader_takes_every_header_field(head: bytes) -> None:
    reader = ResponseReader(100, strict=True)
    answer = reader.feed(OK + head + b"\r\n") or reader.end()
    assert (answer.status, bytes(answer.body)) == (200, b"")


def test_an_encoded_body_stays_as_it_is_where_that_is_wanted() -> None:
    answer = ResponseReader(100, encoded=True).feed(
        OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"
    )
    assert answer is not None
    assert bytes(answer.body) == b"\x1f\x8b"
    assert answer.fields().get("content-encoding") == "gzip"


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_how_many_chunks_are_taken_is_for_the_reader_to_say(pieces: int) -> None:
    raw = OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2 + b"0\r\n\r\n"
    reader = ResponseReader(100, chunks=pieces)
    if pieces < 3:  # the last, empty one counts
        with pytest.raises(ResponseError, match=f"more than {pieces} chunks"):
            reader.feed(raw)
    else:
        assert reader.feed(raw) is not None


@pytest.mark.parametrize(("length", "body"), [(b"000", b""), (b"0" * 5000 + b"2", b"ab")])
def test_a_length_may_begin_with_zeros(length: bytes, body: bytes) -> None:
    assert whole(OK + b"Content-Length: " + length + b"\r\n\r\n" + body) == (200, body, True)


@pytest.mark.parametrize(
    ("raw", "has_begun"),
    [
        (b"", False),
        (b"H", True),
        (OK, True),
        (OK + b"\r\n"[:1], True),
        (b"HTTP/1.1 103 Early\r\n\r\n", False),
        (OK + b"Content-Length: 3\r\n\r\nab", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", True),
    ],
)
def test_half_an_answer_is_none_and_told_from_one_that_had_not_begun(raw: bytes, has_begun: bool) -> None:
    reader = ResponseReader(100)
    assert reader.feed(raw) is None
    with pytest.raises(IncompleteResponseError, match="before the answer was complete") as cut:
        reader.end()
    assert cut.value.has_begun == has_begun


def test_what_a_server_says_of_its_encoding_is_quoted() -> None:
    with pytest.raises(ResponseError) as caught:
        read(OK + b"Content-Encoding: \x1b[31m\x07" + b"x" * 999 + b"\r\nContent-Length: 0\r\n\r\n")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 100


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
