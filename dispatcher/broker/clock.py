"""The broker's clock without a round trip: sampled now and then, and this process's monotonic clock in between.

Deadlines and leases are compared with the broker's clock only. The clocks of producers and dispatchers may differ by
minutes, which would expire requests early or keep dead claims.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Never

from adsum.logs import RateLimitedLog
from dispatcher.broker.contract.queue import QueueError

SAMPLE_INTERVAL = 10.0
"""Seconds."""

log = logging.getLogger(__name__)


class BrokerClock:
    """`now_ms()` is never ahead of the broker's own clock, and behind by one round trip at most."""

    def __init__(
        self, read: Callable[[], Awaitable[int]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._offset = 0.0

    def now_ms(self) -> int:
        """Unix milliseconds on the broker's clock."""
        return int(self._monotonic() * 1000 + self._offset)

    async def sample(self) -> None:
        """Read the broker's clock once; raises QueueError."""
        now = await self._read()
        # Taken after the answer: the error is the way back, and late is safe. A clock that is ahead would report
        # deadlines as passed that are not.
        self._offset = now - self._monotonic() * 1000

    async def run(self) -> Never:
        """Sample for ever; the last sample stays in use while the broker is away."""
        limited_log = RateLimitedLog(log)
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL)
            try:
                await self.sample()
            except QueueError:
                continue
            except Exception as error:  # noqa: BLE001  # a broker of an installed package may raise anything
                limited_log.warning("clock", "the broker's clock cannot be read: %r", error)
