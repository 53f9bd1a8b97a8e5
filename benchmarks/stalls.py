"""Measures the longest iteration of the event loop, in processor time."""

import asyncio
import time
from types import TracebackType
from typing import Self


class Stalls:
    """A context manager with a callback in every iteration of the running loop; `longest`: seconds of processor time
    between two calls, which other processes on the machine do not lengthen.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = 0.0
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle | None = None

    def __enter__(self) -> Self:
        self._last = time.thread_time()
        self._next = self._loop.call_soon(self._turn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._next is not None:
            self._next.cancel()
        self._note()

    def _turn(self) -> None:
        self._note()
        self._next = self._loop.call_soon(self._turn)

    def _note(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._last)
        self._last = now
