"""Timers of a picker: what knows no clock says what is due, and these tasks call it at that time."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, Never

from epp.request.body import MemoryBudget
from epp.scheduling.director import Director

_MIN_PAUSE: Final = 0.001
"""The least seconds between two turns of the admission, if it names a time that has passed."""
_EXPIRE_INTERVAL: Final = 1.0
"""The most seconds between two checks for request bodies that take too long."""


async def dispatch_waiting(
    director: Director, clock: Callable[[], float], took: Callable[[float], None]
) -> Never:
    """The one timer of admission: calls `dispatch` after each change and at the time that its last call returned.

    `took` gets the seconds that each turn took.
    """
    changed = asyncio.Event()
    director.waiting.wake = changed.set
    while True:
        changed.clear()
        started = time.perf_counter()
        due = director.dispatch(clock())
        took(time.perf_counter() - started)
        pause = None if due is None else max(due - clock(), _MIN_PAUSE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await changed.wait()


async def expire_bodies(budget: MemoryBudget, allowed: float, clock: Callable[[], float]) -> Never:
    """Refuse request bodies that are not complete after `allowed` seconds."""
    while True:
        await asyncio.sleep(min(_EXPIRE_INTERVAL, allowed))
        budget.expire(clock() - allowed, allowed)
