"""The broker's clock without a round trip: one sample now and then, and this process's monotonic clock between."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from dispatcher.broker.queue import QueueError

EVERY = 10.0
"""Seconds between two samples."""


class BrokerClock:
    """`now_ms()` is never ahead of the broker's own clock, and behind by one round trip at most."""

    def __init__(
        self, ask: Callable[[], Awaitable[int]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._offset = 0.0

    def now_ms(self) -> int:
        """Unix milliseconds on the broker's clock."""
        return int(self._monotonic() * 1000 + self._offset)

    async def sample(self) -> None:
        """Ask the broker; raises QueueError."""
        now = await self._ask()
        self._offset = now - self._monotonic() * 1000

    async def run(self) -> None:
        """Keep in step; while the broker is away the last sample serves on."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.sample()
            except QueueError:
                continue
