"""Request bodies as they come in at the front door: so many bytes of all of them together, and a time for each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

MOST: Final = 256 * 1024 * 1024
"""Bytes of all bodies that come in, or are not in a queue yet: 25 of the largest."""
SECONDS: Final = 60.0
"""For one body to come."""


class TooLargeError(ValueError):
    """The body has more bytes than the queue takes."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"the body is larger than {most} bytes, which is what the queue takes; send less at once"
        )


class TooSlowError(Exception):
    """The body was not there in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the body was not complete within {seconds:g} s; send it faster, or in smaller requests"
        )


class NoRoomError(Exception):
    """Its bytes were needed for bodies that come faster, or there are none for it."""

    def __init__(self) -> None:
        super().__init__("the front door holds as many bytes of unfinished bodies as it may; try again")


class Bodies:
    """Where there is no room, the body that is silent for longest is refused, not the one that comes."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS) -> None:
        self._most = most
        self._seconds = seconds
        self._coming: dict[_Coming, None] = {}
        """The one that grew last at the end."""
        self.held = 0

    @asynccontextmanager
    async def read(self, request: web.Request, most: int) -> AsyncIterator[bytes]:
        """The whole body, counted until this is left; raises TooLargeError, TooSlowError and NoRoomError."""
        if (request.content_length or 0) > most:
            raise TooLargeError(most)
        coming = _Coming()
        try:
            yield await self._read(request, most, coming)
        finally:
            self.held -= coming.size

    async def _read(self, request: web.Request, most: int, coming: "_Coming") -> bytes:
        pieces = bytearray()
        try:
            async with asyncio.timeout(self._seconds) as coming.time:
                self._coming[coming] = None
                async for piece in request.content.iter_any():
                    if len(pieces) + len(piece) > most:
                        raise TooLargeError(most)
                    self._take(coming, len(piece))
                    pieces += piece
        except TimeoutError:
            raise NoRoomError if coming.refused else TooSlowError(self._seconds) from None
        finally:
            self._coming.pop(coming, None)
        return bytes(pieces)

    def _take(self, coming: "_Coming", size: int) -> None:
        self._coming.pop(coming, None)
        self._coming[coming] = None
        for other in list(self._coming):
            if self.held + size <= self._most:
                break
            if other is not coming and other.size:
                self._refuse(other)
        if self.held + size > self._most:
            raise NoRoomError
        self.held += size
        coming.size += size

    def _refuse(self, coming: "_Coming") -> None:
        """Its task lets go of the bytes as soon as it runs: until then there are two in their place, for a moment."""
        del self._coming[coming]
        self.held -= coming.size
        coming.size = 0
        coming.refused = True
        if coming.time is not None:
            coming.time.reschedule(asyncio.get_running_loop().time())


class _Coming:
    """One body on its way in; `size` is what it counts."""

    __slots__ = ("refused", "size", "time")

    def __init__(self) -> None:
        self.size = 0
        self.refused = False
        self.time: asyncio.Timeout | None = None
