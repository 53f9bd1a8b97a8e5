"""Bounds of the answers that a process waits for: how long each may take, and how many bytes it holds of all of them."""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from adsum.http1.response import ResponseError, ResponseTooLargeError

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


ANSWER_MEMORY: Final = 256 * 1024 * 1024
"""Bytes: a quarter of the memory that the chart gives the dispatcher."""


class AnswerMemoryError(ResponseError):
    """The answer gives way: it is the largest of those that arrive."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the answers held here take {max_bytes} bytes (answer_memory), it was the largest")


class AnswerMemory:
    """Ends the largest answer that arrives when the limit is reached: one without end must not stop small ones."""

    def __init__(self, max_bytes: int = ANSWER_MEMORY) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self._arriving: set[HeldAnswer] = set()

    def arriving(self, end: Callable[[], object]) -> "HeldAnswer":
        """An answer that is about to arrive. `end` is called, once, if it must give way to another one."""
        answer = HeldAnswer(self, end)
        self._arriving.add(answer)
        return answer

    def reserve(self, answer: "HeldAnswer", size: int) -> None:
        """Count `size` more bytes. Raises AnswerMemoryError, ResponseTooLargeError if it alone is over the limit."""
        if answer.evicted:
            raise AnswerMemoryError(self.max_bytes)
        if answer.size + size > self.max_bytes:
            raise ResponseTooLargeError(self.max_bytes)
        while self.held + size > self.max_bytes:
            largest = max(self._arriving, key=lambda one: one.size)
            if largest is answer or largest.size <= answer.size:
                raise AnswerMemoryError(self.max_bytes)
            self.drop(largest)
            largest.end()
        answer.size += size
        self.held += size

    def keep(self, answer: "HeldAnswer", size: int) -> None:
        """The answer is complete, `size` bytes: it stays until it is dropped."""
        self._arriving.discard(answer)
        self.held += size - answer.size
        answer.size = size

    def drop(self, answer: "HeldAnswer") -> None:
        self._arriving.discard(answer)
        self.held -= answer.size
        answer.size = 0


class HeldAnswer:
    """The share of one answer. Its owner calls `release` in the end; a second call does nothing."""

    __slots__ = ("_end", "_memory", "evicted", "size")

    def __init__(self, memory: AnswerMemory, end: Callable[[], object]) -> None:
        self._memory = memory
        self._end = end
        self.size = 0
        self.evicted = False
        """It gave way to another answer."""

    def receive(self, size: int) -> None:
        """`size` more bytes came; raises ResponseError if they may not be held."""
        self._memory.reserve(self, size)

    def complete(self, size: int) -> None:
        self._memory.keep(self, size)

    def end(self) -> None:
        self.evicted = True
        self._end()

    def release(self) -> None:
        self._memory.drop(self)
