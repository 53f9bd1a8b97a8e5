"""How many requests of one process may be on their way to one target, shared by its queues in turn."""

import asyncio
from collections import deque


class Slots:
    """First come, first served: a queue that takes all of them waits behind the others for the next."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._promised = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """At most; may be changed, what is taken then stays taken."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        self._limit = value
        self._wake()

    @property
    def taken(self) -> int:
        """How many are in use."""
        return self._taken

    async def take(self, most: int) -> int:
        """At least one, at most `most`, as soon as there is one; no more than a fair share while others wait."""
        if self._waiting or not self._free():
            await self._turn()
        share = self._free() // (1 + len(self._waiting))
        count = max(1, min(most, share))
        self._taken += count
        self._wake()
        return count

    def release(self, count: int) -> None:
        """They are free again."""
        self._taken -= count
        self._wake()

    def _free(self) -> int:
        return self._limit - self._taken - self._promised

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # promised to a task that was cancelled meanwhile
                self._promised -= 1
            else:
                self._waiting.remove(turn)
            self._wake()
            raise
        self._promised -= 1

    def _wake(self) -> None:
        while self._waiting and self._free() > 0:
            self._promised += 1
            self._waiting.popleft().set_result(None)
