import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.http_response import MalformedError, Response, ResponseReader, TooLargeError


def read(data: bytes, sizes: list[int] | None = None, max_body: int = 1000) -> Response | None:
    """Fed in pieces of these sizes, then all the rest."""
    reader = ResponseReader(max_body)
    for size in sizes or []:
        piece, data = data[:size], data[size:]
        if piece and (response := reader.feed(piece)):
            return response
    return reader.feed(data) if data else None


WHOLE = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b \r\nx-a:c\r\n\r\nabc", 200, b"abc", True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 304\r\ncontent-length: 7\r\n\r\n", 304, b"", True),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: close\r\n\r\n", 200, b"", False),
    (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na", 200, b"a", False),
    (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: Keep-Alive\r\n\r\na", 200, b"a", True),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\na\r\n\r\n1;q=\"x\"\r\nb\r\n0\r\nt: v\r\n\r\n", 200, b"a\r\nb", True),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 200, b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", 200, b"a", True),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nab", 200, b"ab", True),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status", "body", "reusable"), WHOLE)
def test_a_whole_response(data: bytes, status: int, body: bytes, reusable: bool) -> None:
    for sizes in ([], [1] * len(data)):
        response = read(data, sizes)
        assert response is not None
        assert (response.status, response.body, response.reusable) == (status, body, reusable)


def test_headers_of_one_name_are_joined() -> None:
    response = read(WHOLE[0][0])
    assert response is not None
    assert response.headers == {"content-length": "3", "x-a": "b, c"}


def test_bytes_after_the_end_make_the_connection_useless() -> None:
    response = read(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\n")
    assert response is not None
    assert not response.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"nonsense",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\nc: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x1\r\na\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 16 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(MalformedError):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
    ],
)
def test_too_large(data: bytes) -> None:
    with pytest.raises(TooLargeError, match="larger than 1000 bytes"):
        read(data)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    reader = ResponseReader(1000)
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nab") is None
    assert reader.feed(b"c") is None
    response = reader.end()
    assert response.body == b"abc"
    assert not response.reusable


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]
)  # fmt: skip
def test_a_connection_that_ends_too_early(data: bytes) -> None:
    reader = ResponseReader(1000)
    if data:
        assert reader.feed(data) is None
    with pytest.raises(MalformedError, match="ended"):
        reader.end()


@given(
    body=st.binary(max_size=300),
    cuts=st.lists(st.integers(1, 30), max_size=20),
    sizes=st.lists(st.integers(1, 40), max_size=60),
)
def test_chunks_and_pieces_make_no_difference(body: bytes, cuts: list[int], sizes: list[int]) -> None:
    data, left = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", body
    for cut in [*cuts, len(body)]:
        if chunk := left[:cut]:
            data += b"%x\r\n%b\r\n" % (len(chunk), chunk)
            left = left[cut:]
    response = read(data + b"0\r\n\r\n", sizes)
    assert response is not None
    assert response.body == body
    assert response.reusable


@given(st.binary(max_size=200), st.sampled_from([case[0] for case in WHOLE]), st.integers(0, 150))
def test_anything_is_read_or_refused(noise: bytes, data: bytes, at: int) -> None:
    with contextlib.suppress(MalformedError, TooLargeError):
        read(data[:at] + noise + data[at:], [7, 1, 13])
