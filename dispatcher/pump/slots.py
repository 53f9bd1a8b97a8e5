"""Limits the requests of one process that are in flight to one target; its queues share the slots."""

import asyncio
from collections import deque


class Slots:
    """A semaphore of many slots at once, first come, first served: a queue that took all waits behind the others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.in_use = 0
        # Slots of waiters that were woken and have not run yet: a newcomer must not take them.
        self._promised = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """May be lowered below what is in use: then nothing is acquired until enough is released."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        self._limit = value
        self._wake_waiters()

    async def acquire(self, max_count: int) -> int:
        """Wait for a slot, then take up to `max_count`: at least one, at most a fair share while others wait."""
        if self._waiters or self._free() <= 0:
            await self._wait_for_turn()
        # among those that wait and those that were woken; each of these gets one, so a share is never less
        others = self._promised + len(self._waiters)
        count = max(1, min(max_count, (self._limit - self.in_use) // (1 + others)))
        self.in_use += count
        self._wake_waiters()
        return count

    def release(self, count: int) -> None:
        self.in_use -= count
        self._wake_waiters()

    def _free(self) -> int:
        return self._limit - self.in_use - self._promised

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # woken and cancelled before it ran
                self._promised -= 1
            else:
                self._waiters.remove(turn)
            self._wake_waiters()
            raise
        self._promised -= 1

    def _wake_waiters(self) -> None:
        while self._waiters and self._free() > 0:
            self._promised += 1
            self._waiters.popleft().set_result(None)
