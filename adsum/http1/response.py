"""Parses one HTTP/1.1 response as its bytes arrive (RFC 9112), within limits. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from adsum.quoting import printable

_MAX_HEAD: Final = 64 * 1024
"""Bytes of the status line and header fields together, or of the trailer fields."""
_MAX_CHUNK_LINE: Final = 4096
"""Bytes of a chunk's size line with its extensions."""
MAX_CHUNKS: Final = 16 * 1024
"""Default limit of the chunks of a body: a mebibyte in chunks of one byte takes seconds to parse."""
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?(?=\r\n)")
_FIELD: Final = re.compile(
    rb"\r\n(connection|content-encoding|content-length|transfer-encoding):([^\r\n]*)(?=\r\n)"
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_FIELD_LINES: Final = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\r\n]*+)*+\r\n")
_BODILESS: Final = (204, 304)


class ResponseError(Exception):
    """The peer sent no valid HTTP/1.1 response; the text says why."""


class IncompleteResponseError(ResponseError):
    """The connection ended before the response was complete; `has_begun`: after a part of it arrived."""

    def __init__(self, text: str, *, has_begun: bool = False) -> None:
        super().__init__(text)
        self.has_begun = has_begun


class ResponseTooLargeError(ResponseError):
    """The body is larger than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes")
        self.limit = limit


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response. `head`: the header fields as received. `reusable`: the connection may carry another request."""

    status: int
    head: bytes
    body: bytearray
    reusable: bool

    def fields(self) -> "HeaderFields":
        return HeaderFields(self.head)


class HeaderFields(dict[str, str]):
    """The header fields of one response. `get` ignores case (RFC 9110 §5.1); fields of one name are joined by commas."""

    def __init__(self, head: bytes) -> None:
        values: dict[str, list[str]] = {}
        # bounded: _MAX_HEAD bytes
        for line in head.decode("utf-8", "surrogateescape").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                values.setdefault(name.lower(), []).append(value.strip(" \t"))
        super().__init__((name, ", ".join(found)) for name, found in values.items())

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]  # of text only
        return super().get(name.lower(), default)


class ChunkScanner:
    """Finds the end of a chunked body (RFC 9112 §7.1). `payload`: where the content of the chunks is appended; None: nowhere.

    `limit`, `chunks`: the largest body, in bytes and in chunks, of which the last, empty one counts; None: any. The content of
    the trailers is ignored.
    """

    def __init__(
        self, payload: list[bytes] | None = None, *, limit: int | None = None, chunks: int | None = None
    ) -> None:
        self._payload = payload
        self._limit = limit
        self._most_chunks = chunks
        self._rest = b""
        self._left = self._size = self._chunks = 0
        self._after_chunk = self._in_trailers = False
        self._trailers = 0

    def feed(self, data: bytes) -> int | None:
        """How many of these bytes belong to the body if it ends in them, else None. Raises ResponseError."""
        scanned = len(self._rest)
        if self._rest:
            data, self._rest = self._rest + data, b""
        end = self._scan(data)
        return None if end is None else end - scanned

    def _scan(self, data: bytes) -> int | None:
        at, size = 0, len(data)
        while at < size:
            if self._left:
                at = self._pass_content(data, at)
                continue
            line = data.find(b"\r\n", at, at + (_MAX_HEAD if self._in_trailers else _MAX_CHUNK_LINE))
            if line < 0:
                self._keep(data[at:])
                return None
            if self._in_trailers and line == at:
                return line + 2
            self._read_line(data[at:line])
            at = line + 2
        return None

    def _pass_content(self, data: bytes, at: int) -> int:
        """Where the content of this chunk ends, or the data."""
        end = min(at + self._left, len(data))
        if self._payload is not None:
            self._payload.append(data[at:end])
        self._left -= end - at
        self._after_chunk = not self._left
        return end

    def _read_line(self, line: bytes) -> None:
        if self._after_chunk:
            if line:
                raise ResponseError("a chunk of it is longer than its size line says")
            self._after_chunk = False
        elif self._in_trailers:
            self._trailers += len(line)
            self._check_trailers(0)
        else:
            self._begin_chunk(line)

    def _begin_chunk(self, line: bytes) -> None:
        self._chunks += 1
        if self._most_chunks is not None and self._chunks > self._most_chunks:
            raise ResponseError(f"it comes in more than {self._most_chunks} chunks")
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise ResponseError("a chunk of it does not say how long it is")
        self._left = int(found[1], 16)
        self._in_trailers = not self._left
        self._size += self._left
        if self._limit is not None and self._size > self._limit:
            raise ResponseTooLargeError(self._limit)

    def _keep(self, rest: bytes) -> None:
        if self._in_trailers:
            self._check_trailers(len(rest))
        elif len(rest) >= _MAX_CHUNK_LINE:
            raise ResponseError("a chunk of it does not say how long it is")
        if self._after_chunk and rest != b"\r":
            raise ResponseError("a chunk of it is longer than its size line says")
        self._rest = rest

    def _check_trailers(self, further: int) -> None:
        if self._trailers + further > _MAX_HEAD:
            raise ResponseError(f"its trailer fields take more than {_MAX_HEAD} bytes")


class ResponseReader:
    """Feed it the received bytes; it returns the response once that is complete.

    `limit` and `chunks`: the largest body, in bytes and in chunks. `encoded`: accept a Content-Encoding, without decoding
    it. `strict`: reject what a recipient may repair, namely invalid field lines (RFC 9112 §5.1), and a Content-Length
    beside chunks, which may be an attempt at response splitting (§6.3). `received`: called with the number of bytes before
    they are kept; it may raise ResponseError.
    """

    __slots__ = (
        "_buffer", "_chunked", "_encoded", "_head", "_keep_alive", "_length", "_limit", "_payload", "_received", "_scanner",
        "_status", "_strict",
    )  # fmt: skip

    def __init__(
        self,
        limit: int,
        *,
        chunks: int = MAX_CHUNKS,
        encoded: bool = False,
        strict: bool = False,
        received: Callable[[int], object] | None = None,
    ) -> None:
        self._limit = limit
        self._received = received
        self._encoded = encoded
        self._strict = strict
        self._buffer = bytearray()
        self._head = b""
        self._status = 0
        self._keep_alive = True
        self._chunked = False
        self._payload: list[bytes] = []  # bounded: `limit`
        self._scanner = ChunkScanner(self._payload, limit=limit, chunks=chunks)
        self._length: int | None = None

    def feed(self, data: bytes | memoryview) -> HttpResponse | None:
        """The response if these bytes complete it, else None. Raises ResponseError."""
        if self._received is not None:
            self._received(len(data))
        self._buffer += data
        while not self._status:
            if not self._read_head():
                return None
        if self._chunked:
            return self._read_chunks()
        if len(self._buffer) > self._limit and self._length is None:
            raise self._too_large()
        if self._length is None or len(self._buffer) < self._length:
            return None
        reusable = self._keep_alive and len(self._buffer) == self._length
        del self._buffer[self._length :]
        return HttpResponse(self._status, self._head, self._buffer, reusable)

    def end(self) -> HttpResponse:
        """The peer closed the connection: that ends a body without a length (RFC 9112 §6.3). Raises ResponseError."""
        if self._status and not self._chunked and self._length is None:
            return HttpResponse(self._status, self._head, self._buffer, reusable=False)
        has_begun = bool(self._status or self._buffer)  # an interim response (1xx) does not count
        raise IncompleteResponseError(
            "the connection was closed before the answer was complete", has_begun=has_begun
        )

    def _read_head(self) -> bool:
        """Parse and remove one head; False if it is incomplete. Interim responses (1xx) are skipped (RFC 9110 §15.2)."""
        end = self._buffer.find(b"\r\n\r\n")
        if end > _MAX_HEAD or (end < 0 and len(self._buffer) > _MAX_HEAD):
            raise ResponseError(f"its header fields take more than {_MAX_HEAD} bytes")
        if end < 0:
            return False
        head = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 4]
        found = _STATUS.match(head)
        if found is None:
            raise ResponseError("the peer does not speak HTTP/1.1")
        status = int(found[2])
        if status >= 200:
            self._status = status
            self._head = head[found.end() :]
            if self._strict and _FIELD_LINES.fullmatch(self._head) is None:
                raise ResponseError("a line of its head is not a header field")
            self._read_fields(self._head.lower(), is_http_1_1=found[1] == b"1")
        elif status == 101:
            raise ResponseError("status 101: it switches to a protocol that was not requested")
        return True

    def _read_fields(self, head: bytes, *, is_http_1_1: bool) -> None:
        """`head`: the header fields in lower case."""
        fields: dict[bytes, bytes] = {}
        for name, value in _FIELD.findall(head):
            fields[name] = fields[name] + b"," + value if name in fields else value
        # bounded: _MAX_HEAD bytes
        connection = [option.strip() for option in fields.get(b"connection", b"").split(b",")]
        self._keep_alive = b"close" not in connection and (is_http_1_1 or b"keep-alive" in connection)
        encoding = fields.get(b"content-encoding", b"identity").strip()
        if encoding not in (b"identity", b"") and not self._encoded:
            raise ResponseError(
                f"it is encoded ({printable(encoding.decode('latin-1'), 20)}), though that was not asked for"
            )
        self._read_length(fields)

    def _read_length(self, fields: dict[bytes, bytes]) -> None:
        coding = fields.get(b"transfer-encoding")
        coding = coding if coding is None else coding.strip()
        if coding not in (None, b"chunked"):
            raise ResponseError("its Transfer-Encoding is not chunked")
        self._chunked = coding is not None
        if self._chunked and self._strict and b"content-length" in fields:
            raise ResponseError("it has both Content-Length and Transfer-Encoding")
        # bounded: _MAX_HEAD bytes
        lengths = {length.strip() for length in fields.get(b"content-length", b"").split(b",")}
        if self._status in _BODILESS:
            self._chunked, self._length = False, 0
        elif not self._chunked and b"content-length" in fields:
            length = lengths.pop()
            # `int` rejects more than 4,300 digits (CVE-2020-10735)
            length = length.lstrip(b"0") or length[-1:]
            if lengths or not _LENGTH.fullmatch(length):
                raise ResponseError("its Content-Length is not a number")
            self._length = int(length)
            if self._length > self._limit:
                raise self._too_large()

    def _read_chunks(self) -> HttpResponse | None:
        received = bytes(self._buffer)
        self._buffer.clear()
        end = self._scanner.feed(received)
        if end is None:
            return None
        body = bytearray().join(self._payload)
        return HttpResponse(self._status, self._head, body, self._keep_alive and end == len(received))

    def _too_large(self) -> ResponseTooLargeError:
        return ResponseTooLargeError(self._limit)
