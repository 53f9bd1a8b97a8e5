"""Tells people when the source of a watch goes out of reach, and when it answers again."""

import asyncio
from collections.abc import Callable
from typing import Final

from discovery.watch import WatchHealth, WatchState

_INTERVAL: Final = 1.0
"""Seconds between two looks; an outage that is over before is not told."""


class HealthChanges:
    """`tell` is called with one line for each change."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._degraded = False

    def note(self, health: WatchHealth) -> None:
        degraded = health.state is WatchState.DEGRADED
        if degraded and not self._degraded:
            self._tell(f"the source is out of reach: {health.reason}; the last known workers stay")
        elif self._degraded and not degraded:
            self._tell("the source answers again")
        self._degraded = degraded

    async def follow(self, read: Callable[[], WatchHealth]) -> None:
        """Until cancelled. `read`: the health now."""
        while True:
            self.note(read())
            await asyncio.sleep(_INTERVAL)
