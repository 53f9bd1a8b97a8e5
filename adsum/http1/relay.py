"""Hands a response on as its bytes arrive, and finds where it ends (RFC 9112 §6, §7.1), without keeping its body. Pure."""

from typing import Final, Protocol

from adsum.http1.response import ChunkScanner, HttpResponse, ResponseReader

_ANY_LENGTH: Final = 2**63
"""Bytes of a body that is not kept: no limit."""


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


class RelayReader(ResponseReader):
    """A reader for `ClientConnection` that gives everything to a receiver; the response that it returns has no body.

    Interim responses (1xx) are left out. `bodiless`: of a request with HEAD, whose response has a length but no body.
    """

    __slots__ = ("_bodiless", "_left", "_receiver")

    def __init__(self, receiver: ResponseReceiver, *, bodiless: bool = False) -> None:
        super().__init__(_ANY_LENGTH, encoded=True, strict=True)
        self._receiver = receiver
        self._bodiless = bodiless
        self._scanner = ChunkScanner()
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
        self._left = self._length
        self._receiver.begin(self._status, self._head, Framing(chunked=self._chunked, length=self._length))

    def _end_in(self, received: bytes) -> int | None:
        """How many of these bytes belong to the response if it ends in them."""
        if self._chunked:
            return self._scanner.feed(received)
        if self._left is None:
            return None
        if len(received) >= self._left:
            return self._left
        self._left -= len(received)
        return None
