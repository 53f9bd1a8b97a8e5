"""The protocol of a gate: its budget, admission, refusal and the outcome that it learns."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self

from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.gates.parameters import NoGateParameters, Parameters


class Scope(Enum):
    """Which requests a refusal applies to."""

    QUEUE = "queue"
    """All requests behind this gate."""
    TENANT = "tenant"
    """Requests of the candidate's tenant; others may pass."""


class RefusedError(Exception):
    """The candidate may not go now. `changed` returns when asking again may help: callers wait for it, they do not poll."""

    def __init__(self, reason: str, scope: Scope, changed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.scope = scope
        self.changed = changed


class Outcome(Enum):
    """The target's answer, as far as it is about its load."""

    ACCEPTED = "accepted"
    OVERLOADED = "overloaded"
    OTHER = "other"
    UNUSED = "unused"
    """Nothing was sent."""


@dataclass(slots=True)
class Slot:
    """A granted admission; its holder sets `outcome` and `retry_after_ms` before leaving."""

    outcome: Outcome = Outcome.OTHER
    retry_after_ms: int = 0


class DispatchGate(Protocol):
    """An async context manager: entered, it reads its sources; left, its tasks have ended."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def budget(self) -> float:
        """max(0, D - B), the budget less the baseline, 0 to 1; 0 if it cannot be read. For metrics and `--dry-run`."""

    def admit(self, candidate: DispatchCandidate) -> AbstractAsyncContextManager[Slot]:
        """Entered, the candidate may go; raises RefusedError without waiting otherwise. Left, the slot is released.

        It may be left in another task than it was entered in. Left by an exception, it counts as UNUSED.
        """


@dataclass(frozen=True, slots=True)
class GateContext:
    """Where a gate is used. `target`: the name of what its requests are sent to. `concurrency`: how many
    requests this process sends there at once; None: not known.
    """

    target: str
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDeclaration:
    """One kind of gate.

    `build` is called with the parameters and a GateContext; a ValueError is shown as a mistake in the parameters. It opens
    nothing: entering the gate does. `parameters`: the fields of `params`.
    """

    build: Callable[[Any, GateContext], DispatchGate]
    parameters: type[Parameters] = NoGateParameters
