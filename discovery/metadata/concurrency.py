"""Limits the metadata fetches that run at once, without letting slow workers block the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

_RETRY_SHARE: Final = 4
"""One slot in so many may be used by retries."""
_SLOW_AFTER: Final = 0.25
"""Seconds after which a fetch without an answer gives its slot to the next one."""
_MAX_SLOW: Final = 1024
"""Slow fetches that may run beside those with a slot: each costs a descriptor. Further ones keep their slots."""


class FetchLimiter:
    """Lets `at_once` fetches begin together. A slow fetch gives up its slot and goes on without one.

    With a plain semaphore, `at_once` workers that accept connections and never answer would hold every slot until
    their timeouts, and no other worker's metadata would arrive for seconds.
    """

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        # retries have a limit of their own: when many workers are gone, first fetches must not queue behind them
        self._retry_slots = asyncio.Semaphore(max(1, at_once // _RETRY_SHARE))
        self._free_slow = _MAX_SLOW

    @asynccontextmanager
    async def slot(self, *, retry: bool = False) -> AsyncIterator[None]:
        with ExitStack() as held:
            for semaphore in (self._retry_slots, self._slots) if retry else (self._slots,):
                await semaphore.acquire()
                held.callback(semaphore.release)
            self._release_later(held)
            yield

    def _release_later(self, held: ExitStack) -> None:
        held.callback(asyncio.get_running_loop().call_later(_SLOW_AFTER, self._release_slow, held).cancel)

    def _release_slow(self, held: ExitStack) -> None:
        if self._free_slow <= 0:
            self._release_later(held)
            return
        self._free_slow -= 1
        held.close()
        held.callback(self._slow_ended)

    def _slow_ended(self) -> None:
        self._free_slow += 1
