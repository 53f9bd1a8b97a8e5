"""Does long work on the event loop so that others have their turn in between."""

import asyncio
import time
from typing import Final, TypeVar

from epp.scheduling.kv_events.batches import Steps

T = TypeVar("T")

_SLICE: Final = 0.001
"""Seconds."""


class TimeSlices:
    """One thing after the other."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._began = time.monotonic()

    async def run(self, steps: Steps[T]) -> T:
        async with self.lock:
            while True:
                if time.monotonic() - self._began > _SLICE:
                    await asyncio.sleep(0)
                    self._began = time.monotonic()
                try:
                    next(steps)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
