"""How many questions are under way at once: whoever is slow to answer keeps nobody else waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

_RETRYING: Final = 4
"""One in so many may be a retry."""
_PATIENCE: Final = 0.25
"""Seconds for which an answer may take up the place of another question."""
_SLOW: Final = 1024
"""Questions that may wait beside those; beyond that they keep their places."""


class Turns:
    """`at_once` questions begin together. One that is not answered soon waits on, and makes room for the next."""

    def __init__(self, at_once: int) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._retries = asyncio.Semaphore(max(1, at_once // _RETRYING))
        self._slow = _SLOW

    @asynccontextmanager
    async def turn(self, *, retry: bool = False) -> AsyncIterator[None]:
        with ExitStack() as place:
            for gate in (self._retries, self._all) if retry else (self._all,):
                await gate.acquire()
                place.callback(gate.release)
            self._look_later(place)
            yield

    def _look_later(self, place: ExitStack) -> None:
        place.callback(asyncio.get_running_loop().call_later(_PATIENCE, self._give_way, place).cancel)

    def _give_way(self, place: ExitStack) -> None:
        if self._slow <= 0:
            self._look_later(place)
            return
        self._slow -= 1
        place.close()
        place.callback(self._be_done)

    def _be_done(self) -> None:
        self._slow += 1
