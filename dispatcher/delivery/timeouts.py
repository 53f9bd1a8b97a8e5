"""Coarse timeouts: many requests share few event loop timers, as in a timer wheel.

A timer for each request would be a twentieth of the processor time that a request takes.
"""

import asyncio
import math
from types import TracebackType
from typing import Any, Final

RESOLUTION: Final = 0.1
"""Seconds that a timeout may end late; timeouts that end within that of each other share a timer."""
MIN_COARSE: Final = 1.0
"""Seconds; the resolution of shorter timeouts is a hundred times finer."""


class CoarseTimeout:
    """A context manager that raises TimeoutError, never early. It replaces `asyncio.timeout`."""

    __slots__ = ("_cancelling", "_expired", "_task", "_tick", "_timeouts", "seconds")

    def __init__(self, timeouts: "CoarseTimeouts", seconds: float) -> None:
        self._timeouts = timeouts
        self.seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout must be used inside a task")
        self._task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()  # cancellations that others asked for before
        self._tick = self._timeouts.add(self, self.seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeouts.remove(self, self._tick)
        # As in asyncio.timeout: somebody else may have cancelled the task too, and that cancellation must go on.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task; `__exit__` turns that into TimeoutError. Once: a second cancellation would go on."""
        if not self._expired:
            self._expired = True
            self._task.cancel()


class CoarseTimeouts:
    """The timeouts of one event loop."""

    def __init__(self) -> None:
        self._due: dict[int, set[CoarseTimeout]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def timeout(self, seconds: float) -> CoarseTimeout:
        return CoarseTimeout(self, seconds)

    def add(self, timeout: CoarseTimeout, seconds: float) -> int:
        """Schedule its end; returns the tick that it shares with others."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        grain = RESOLUTION if seconds >= MIN_COARSE else RESOLUTION / 100
        tick = math.ceil(ends / grain) * round(grain * 1000)
        bucket = self._due.get(tick)
        if bucket is None:
            bucket = self._due[tick] = set()
            self._timers[tick] = loop.call_at(tick / 1000, self._expire_tick, tick)
        bucket.add(timeout)
        return tick

    def remove(self, timeout: CoarseTimeout, tick: int) -> None:
        """Unschedule it; the last one of a tick cancels the timer."""
        bucket = self._due.get(tick)
        if bucket is None:
            return
        bucket.discard(timeout)
        if not bucket:
            del self._due[tick]
            self._timers.pop(tick).cancel()

    def _expire_tick(self, tick: int) -> None:
        del self._timers[tick]
        for timeout in self._due.pop(tick):
            timeout.expire()
