"""Bounds the bytes that a process holds of the answers that it waits for."""

from collections.abc import Callable
from typing import Final

from adsum.http1.response import ResponseError, ResponseTooLargeError

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
        self.unfinished: set[HeldAnswer] = set()

    def arriving(self, end: Callable[[], object]) -> "HeldAnswer":
        """An answer that is about to arrive. `end` is called, once, if it must give way to another one."""
        answer = HeldAnswer(self, end)
        self.unfinished.add(answer)
        return answer


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
        """Count `size` more bytes. Raises AnswerMemoryError, ResponseTooLargeError if it alone is over the limit."""
        memory = self._memory
        if self.evicted:
            raise AnswerMemoryError(memory.max_bytes)
        if self.size + size > memory.max_bytes:
            raise ResponseTooLargeError(memory.max_bytes)
        while memory.held + size > memory.max_bytes:
            largest = max(memory.unfinished, key=lambda one: one.size)
            if largest is self or largest.size <= self.size:
                raise AnswerMemoryError(memory.max_bytes)
            largest.evict()
        self.size += size
        memory.held += size

    def complete(self, size: int) -> None:
        """It is `size` bytes, and stays until it is released."""
        self._memory.unfinished.discard(self)
        self._memory.held += size - self.size
        self.size = size

    def evict(self) -> None:
        self.evicted = True
        self.release()
        self._end()

    def release(self) -> None:
        self.complete(0)
