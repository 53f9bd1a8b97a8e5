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
