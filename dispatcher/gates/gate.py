"""The words of a gate: budget, admit, refused."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

from dispatcher.broker.message import DispatchCandidate


class Scope(Enum):
    """Whom a refusal holds up."""

    QUEUE = "queue"
    """Everybody behind this gate."""
    TENANT = "tenant"
    """Only requests of the candidate's tenant; others may pass."""


class RefusedError(Exception):
    """Not now. `changed` returns when asking again may help: callers wait, they do not poll."""

    def __init__(self, reason: str, scope: Scope, changed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.scope = scope
        self.changed = changed


class Outcome(Enum):
    """What the target said, for gates that learn from it."""

    ACCEPTED = "accepted"
    OVERLOADED = "overloaded"
    OTHER = "other"
    UNUSED = "unused"
    """Nothing was sent: it counts for nothing."""


@dataclass(slots=True)
class Slot:
    """A place that was granted; set `outcome` (and `retry_after_ms`) before leaving."""

    outcome: Outcome = Outcome.OTHER
    retry_after_ms: int = 0


class DispatchGate(Protocol):
    """An async context manager itself: entered, its sources are being read; left, every task has ended."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def budget(self) -> float:
        """max(0, D - B), the budget less the baseline, in 0..1, for metrics and `--dry-run`; 0 where nothing can be read."""

    def admit(self, candidate: DispatchCandidate) -> AbstractAsyncContextManager[Slot]:
        """Enter: the candidate may go, raises RefusedError at once otherwise. Leave: the slot is released.

        May be left in another task than it was entered in; left by an exception it counts as UNUSED.
        """
