"""Timeouts of many requests over few timers: a timer for each would be a twentieth of what a request costs."""

import asyncio
import math
from types import TracebackType
from typing import Any, Final

RESOLUTION: Final = 0.1
"""Seconds that one ends too late, at most; those that end within that of each other share a timer."""
MIN_COARSE: Final = 1.0
"""Seconds; a shorter one has a timer of its own."""


class CoarseTimeout:
    """`with` it in a task: raises TimeoutError as `asyncio.timeout` does, never too early."""

    __slots__ = ("_cancelling", "_expired", "_seconds", "_task", "_tick", "_timeouts")

    def __init__(self, timeouts: "CoarseTimeouts", seconds: float) -> None:
        self._timeouts = timeouts
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout needs a task that it can end")
        self._task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()
        self._tick = self._timeouts.add(self, self._seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeouts.remove(self, self._tick)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """The time is over."""
        self._expired = True
        self._task.cancel()


class CoarseTimeouts:
    """Of one event loop."""

    def __init__(self) -> None:
        self._due: dict[int, set[CoarseTimeout]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def timeout(self, seconds: float) -> CoarseTimeout:
        """For one `with`."""
        return CoarseTimeout(self, seconds)

    def add(self, one: CoarseTimeout, seconds: float) -> int:
        """The tick that ends it, with all that it has the timer together with."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        grain = RESOLUTION if seconds >= MIN_COARSE else RESOLUTION / 100
        tick = math.ceil(ends / grain) * round(grain * 1000)
        together = self._due.get(tick)
        if together is None:
            together = self._due[tick] = set()
            self._timers[tick] = loop.call_at(tick / 1000, self._expire_tick, tick)
        together.add(one)
        return tick

    def remove(self, one: CoarseTimeout, tick: int) -> None:
        """It is done; with the last one goes the timer."""
        together = self._due.get(tick)
        if together is None:
            return
        together.discard(one)
        if not together:
            del self._due[tick]
            self._timers.pop(tick).cancel()

    def _expire_tick(self, tick: int) -> None:
        del self._timers[tick]
        for one in self._due.pop(tick):
            one.expire()
