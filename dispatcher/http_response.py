"""One HTTP/1.1 response to a POST, from bytes (pure, RFC 9112): strict, since what follows decides who is answered."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_HEAD = 64 * 1024
"""Bytes of a status line and its headers, of one line of a chunked body's framing, of its trailers."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n\x00]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\x00]*)?")


class MalformedError(Exception):
    """What came is no response that can be told from its end."""


class TooLargeError(Exception):
    """The body is larger than allowed."""


@dataclass(frozen=True, slots=True)
class Response:
    """All of it. `headers`: names in lower case; several of one name are joined by ", ". `reusable`: its connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    reusable: bool


@dataclass(slots=True)
class ResponseReader:
    """Fed what arrives, until it returns the response. `begun`: something arrived."""

    max_body: int
    begun: bool = False
    _status: int = 0
    _headers: dict[str, str] = field(default_factory=dict)
    _reusable: bool = False
    _buffer: bytes = b""
    _at: int = 0
    """Where in the buffer what was not read yet begins."""
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0
    _left: int | None = None
    """Bytes of the body or of the chunk still to come; None: as many as come until the connection ends."""
    _chunked: bool = False
    _after_chunk: bool = False
    _trailers: bool = False

    def feed(self, data: bytes) -> Response | None:
        """The response, once it is whole; raises MalformedError and TooLargeError."""
        self.begun = True
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        while not self._status:
            if not self._read_head():
                return None
        if self._chunked:
            return self._read_chunks()
        self._take(self._left)
        return self._whole() if self._left == 0 else None

    def end(self) -> Response:
        """The connection ended: that ends a body without a length; raises MalformedError for any other."""
        if self._status and not self._chunked and self._left is None:
            return self._whole()
        raise MalformedError(
            "the connection ended before the answer did" if self.begun else "the connection ended"
        )

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", self._at)
        if (len(self._buffer) if end < 0 else end) - self._at > MOST_HEAD:
            raise MalformedError(f"the answer's headers are longer than {MOST_HEAD} bytes")
        if end < 0:
            if not b"HTTP/1.".startswith(self._buffer[self._at : self._at + 7]):
                raise MalformedError("the answer is not HTTP/1.1")
            return False
        first, *lines = self._buffer[self._at : end].split(b"\r\n")
        self._at = end + 4
        if not (match := _STATUS.fullmatch(first)):
            raise MalformedError("the answer is not HTTP/1.1")
        status = int(match[2])
        if status == 101:
            raise MalformedError("the answer switches protocols, which was not asked for")
        if status < 200:
            return self._at < len(self._buffer)
        self._headers = _headers(lines)
        self._status = status
        self._frame(minor=int(match[1]))
        return True

    def _frame(self, minor: int) -> None:
        options = {option.strip().lower() for option in self._headers.get("connection", "").split(",")}
        self._reusable = "close" not in options and (minor == 1 or "keep-alive" in options)
        coding, length = self._headers.get("transfer-encoding"), self._headers.get("content-length")
        if self._status in (204, 304):
            self._left = 0
        elif coding is not None:
            if coding.strip().lower() != "chunked" or length is not None or minor == 0:
                raise MalformedError("the answer's length is ambiguous")
            self._chunked, self._left = True, 0
        elif length is not None:
            sizes = {size.strip() for size in length.split(",")}
            size = sizes.pop()
            if sizes or not (size.isascii() and size.isdigit() and len(size) <= 15):
                raise MalformedError("the answer's Content-Length is no number")
            self._left = int(size)
            self._check(self._left)

    def _take(self, most: int | None) -> None:
        """Move up to `most` bytes from the buffer to the body."""
        end = len(self._buffer) if most is None else min(len(self._buffer), self._at + most)
        part = self._buffer[self._at : end]
        if not part:
            return
        self._at = end
        self._size += len(part)
        self._check(self._size)
        self._parts.append(part)
        if self._left is not None:
            self._left -= len(part)

    def _check(self, size: int) -> None:
        if size > self.max_body:
            raise TooLargeError(f"the answer is larger than {self.max_body} bytes")

    def _read_chunks(self) -> Response | None:
        while (line := self._framing_line()) is not None:
            if self._after_chunk:
                if line:
                    raise MalformedError("the answer's chunks are malformed")
                self._after_chunk = False
            elif not self._trailers:
                self._begin_chunk(line)
            elif not line:
                return self._whole()
        return None

    def _framing_line(self) -> bytes | None:
        """The line after the data of the present chunk, once that is in."""
        if self._left:
            self._take(self._left)
            if self._left:
                return None
            self._after_chunk = True
        return self._line()

    def _begin_chunk(self, line: bytes) -> None:
        if not (match := _CHUNK.fullmatch(line)):
            raise MalformedError("the answer's chunks are malformed")
        self._left = int(match[1], 16)
        self._check(self._size + self._left)
        self._trailers = self._left == 0

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", self._at)
        if (len(self._buffer) if end < 0 else end) - self._at > MOST_HEAD:
            raise MalformedError("the answer's chunks are malformed")
        if end < 0:
            return None
        line = self._buffer[self._at : end]
        self._at = end + 2
        return line

    def _whole(self) -> Response:
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        nothing_more = self._left is not None and self._at == len(self._buffer)
        return Response(self._status, self._headers, body, self._reusable and nothing_more)


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        if not (match := _HEADER.fullmatch(line)):
            raise MalformedError("the answer has a malformed header")
        name, value = match[1].decode("ascii").lower(), match[2].decode("latin-1").rstrip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
