"""Hands a response on as its bytes arrive, and finds where it ends (RFC 9112 §6, §7.1), without keeping its body. Pure."""

import re
from typing import Final, Protocol

from adsum.http1.response import HttpResponse, ResponseError, ResponseReader

_ANY_LENGTH: Final = 2**63
"""Bytes of a body that is not kept: no limit."""
_MAX_LINE: Final = 4096
"""Bytes of a chunk's size line with its extensions, and of a trailer field."""
_MAX_TRAILERS: Final = 64 * 1024
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")


class ResponseReceiver(Protocol):
    """Gets one response. Each call comes from the event loop's read of the peer's socket: it must not block."""

    def begin(self, status: int, fields: bytes, framing: "Framing") -> None:
        """The head has come. `fields`: the header fields as received, a line break before each and after the last."""

    def receive(self, data: bytes) -> None:
        """Bytes as they were received: if the body is chunked, with the chunks' framing. Soon after `begin`, maybe none."""


class Framing:
    """How a body ends: `chunked`, after `length` bytes, or (neither) with its connection."""

    __slots__ = ("chunked", "length")

    def __init__(self, *, chunked: bool, length: int | None) -> None:
        self.chunked = chunked
        self.length = length


class ChunkScanner:
    """Finds the end of a chunked body. `payload`: where the content of the chunks is appended; None: nowhere."""

    def __init__(self, payload: list[bytes] | None = None) -> None:
        self._payload = payload
        self._rest = b""
        self._left = 0
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
            line = data.find(b"\r\n", at, at + _MAX_LINE)
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
            if self._trailers > _MAX_TRAILERS:
                raise ResponseError(f"its trailer fields take more than {_MAX_TRAILERS} bytes")
        else:
            self._left = self._chunk_size(line)
            self._in_trailers = not self._left

    def _keep(self, rest: bytes) -> None:
        if len(rest) >= _MAX_LINE:
            raise ResponseError("a chunk of it does not say how long it is")
        if self._after_chunk and rest != b"\r":
            raise ResponseError("a chunk of it is longer than its size line says")
        self._rest = rest

    def _chunk_size(self, line: bytes) -> int:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise ResponseError("a chunk of it does not say how long it is")
        return int(found[1], 16)


class RelayReader(ResponseReader):
    """A reader for `ClientConnection` that gives everything to a receiver; the response that it returns has no body.

    Interim responses (1xx) are left out. `bodiless`: of a request with HEAD, whose response has a length but no body.
    """

    __slots__ = ("_bodiless", "_left", "_receiver", "_scanner")

    def __init__(self, receiver: ResponseReceiver, *, bodiless: bool = False) -> None:
        super().__init__(_ANY_LENGTH, encoded=True, strict=True)
        self._receiver = receiver
        self._bodiless = bodiless
        self._scanner: ChunkScanner | None = None
        self._left: int | None = None

    def feed(self, data: bytes | memoryview) -> HttpResponse | None:
        received = bytes(data)  # the connection's buffer is used again
        begins = not self._status
        if begins:
            self._buffer += received
            while not self._status:
                if not self._read_head():
                    return None
            received = bytes(self._buffer)
            self._buffer.clear()
            self._begin()
        end = self._end_in(received)
        if begins or received[:end]:
            self._receiver.receive(received[:end])
        if end is None:
            return None
        return HttpResponse(
            self._status, self._head, bytearray(), reusable=self._keep_alive and end == len(received)
        )

    def _begin(self) -> None:
        if self._bodiless:
            self._chunked, self._length = False, 0
        if self._chunked:
            self._scanner = ChunkScanner()
        self._left = self._length
        self._receiver.begin(self._status, self._head, Framing(chunked=self._chunked, length=self._length))

    def _end_in(self, received: bytes) -> int | None:
        """How many of these bytes belong to the response if it ends in them."""
        if self._scanner is not None:
            return self._scanner.feed(received)
        if self._left is None:
            return None
        if len(received) >= self._left:
            return self._left
        self._left -= len(received)
        return None
