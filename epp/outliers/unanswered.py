"""The requests that endpoints have not answered, and which endpoints stall: silent while others answer. Pure."""

from collections.abc import Hashable
from itertools import islice
from typing import Final

_PATIENCE: Final = 3.0
"""An answer is overdue after so many times the slowest one lately."""
_WINDOW: Final = 60.0
"""Seconds for which the slowest answer counts, at least; twice as long at most."""


class Unanswered:
    """The requests to one endpoint whose answers have not begun, in the order in which they were sent.

    Streamed and whole answers are kept apart: the first begin at once, the others when the last token is there.
    """

    __slots__ = ("_latest", "_sent")

    def __init__(self) -> None:
        self._sent: tuple[dict[Hashable, float], dict[Hashable, float]] = ({}, {})
        self._latest = [float("-inf"), float("-inf")]

    def sent(self, request: Hashable, now: float, *, streamed: bool) -> None:
        self._sent[streamed][request] = now

    def over(self, request: Hashable, *, streamed: bool, answered: bool) -> float | None:
        """When it was sent; None: unknown."""
        at = self._sent[streamed].pop(request, None)
        if answered and at is not None:
            self._latest[streamed] = max(self._latest[streamed], at)
        return at

    @property
    def none(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._sent[False] and not self._sent[True]

    def latest_answered(self, *, streamed: bool) -> float:
        """When the latest of the answered requests was sent; -inf: none was answered."""
        return self._latest[streamed]

    def since(self, count: int, *, streamed: bool) -> float | None:
        """Since when at least `count` requests have been without an answer; None: fewer are."""
        return next(islice(self._sent[streamed].values(), count - 1, None), None)


class AnswerTimes:
    """How long the slowest answer of a pool took to begin, lately."""

    __slots__ = ("_before", "_current", "_turned_at")

    def __init__(self) -> None:
        self._current = [0.0, 0.0]
        self._before = [0.0, 0.0]
        self._turned_at = float("-inf")

    def observe(self, took: float, now: float, *, streamed: bool) -> None:
        if now - self._turned_at > _WINDOW:
            self._before, self._current = self._current, [0.0, 0.0]
            self._turned_at = now
        self._current[streamed] = max(self._current[streamed], took)

    def patience(self, least: float, *, streamed: bool) -> float:
        """Seconds after which an answer is overdue."""
        return max(least, _PATIENCE * max(self._current[streamed], self._before[streamed]))
