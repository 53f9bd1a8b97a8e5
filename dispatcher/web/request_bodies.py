"""Reads request bodies at the front door, within a limit on their total size and a timeout for each.

Without both, clients that send large bodies slowly (slow POST) could hold all memory of the process.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

MAX_BYTES: Final = 256 * 1024 * 1024
"""Bytes of all bodies that are incomplete or not in a queue yet: 25 of the largest."""
READ_TIMEOUT: Final = 60.0
"""Seconds for one body to arrive."""


class BodyTooLargeError(ValueError):
    """The body is larger than the queue's `max_payload`. Answered 413."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"the body is larger than {max_bytes} bytes, which is what the queue takes; send less at once"
        )


class BodyTimeoutError(Exception):
    """The body was not complete in time. Answered 408."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the body was not complete within {seconds:g} s; send it faster, or in smaller requests"
        )


class BodyMemoryError(Exception):
    """No memory is left for the body, or it was evicted for one that arrives faster. Answered 503."""

    def __init__(self) -> None:
        super().__init__("the front door holds as many bytes of unfinished bodies as it may; try again")


class RequestBodies:
    """Evicts the body that has been silent for longest when the limit is reached: a slow client must not stop fast ones."""

    def __init__(self, max_bytes: int = MAX_BYTES, seconds: float = READ_TIMEOUT) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._incoming: dict[_IncomingBody, None] = {}
        """In the order of their last bytes, the latest at the end."""
        self.held = 0

    @asynccontextmanager
    async def read(self, request: web.Request, max_bytes: int) -> AsyncIterator[bytes]:
        """The complete body; it counts until the context is left. Raises BodyTooLargeError, BodyTimeoutError, BodyMemoryError."""
        if (request.content_length or 0) > max_bytes:
            raise BodyTooLargeError(max_bytes)
        incoming = _IncomingBody()
        try:
            yield await self._read(request, max_bytes, incoming)
        finally:
            self.held -= incoming.size

    async def _read(self, request: web.Request, max_bytes: int, incoming: "_IncomingBody") -> bytes:
        pieces = bytearray()
        try:
            async with asyncio.timeout(self._seconds) as incoming.time:
                self._incoming[incoming] = None
                async for piece in request.content.iter_any():
                    if len(pieces) + len(piece) > max_bytes:
                        raise BodyTooLargeError(max_bytes)
                    self._reserve(incoming, len(piece))
                    pieces += piece
        except TimeoutError:
            raise BodyMemoryError if incoming.evicted else BodyTimeoutError(self._seconds) from None
        finally:
            self._incoming.pop(incoming, None)
        return bytes(pieces)

    def _reserve(self, incoming: "_IncomingBody", size: int) -> None:
        self._incoming.pop(incoming, None)
        self._incoming[incoming] = None
        for other in list(self._incoming):
            if self.held + size <= self._max_bytes:
                break
            if other is not incoming and other.size:
                self._evict(other)
        if self.held + size > self._max_bytes:
            raise BodyMemoryError
        self.held += size
        incoming.size += size

    def _evict(self, incoming: "_IncomingBody") -> None:
        """Its task frees the bytes when it runs next; until then both bodies are in memory."""
        del self._incoming[incoming]
        self.held -= incoming.size
        incoming.size = 0
        incoming.evicted = True
        if incoming.time is not None:
            incoming.time.reschedule(asyncio.get_running_loop().time())


class _IncomingBody:
    """A body that is being read; `size`: the bytes it counts."""

    __slots__ = ("evicted", "size", "time")

    def __init__(self) -> None:
        self.size = 0
        self.evicted = False
        self.time: asyncio.Timeout | None = None
