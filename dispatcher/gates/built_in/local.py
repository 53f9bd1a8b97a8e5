"""Limits the requests of this process that are in flight."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.wake_up import Changes
from dispatcher.gates.gate import RefusedError, Scope, Slot


class LocalConcurrencyGate:
    """Knows neither the target's load nor other replicas."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._changes = Changes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def budget(self) -> float:
        """The free share of the limit."""
        return max(0.0, (self._limit - self._in_flight) / self._limit)

    @asynccontextmanager
    async def admit(self, candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        if self._in_flight >= self._limit:
            seen = self._changes.count
            reason = f"{self._limit} requests of this process are in flight"
            raise RefusedError(reason, Scope.QUEUE, lambda: self._changes.wait(60.0, seen))
        self._in_flight += 1
        try:
            yield Slot()
        finally:
            self._in_flight -= 1
            self._changes.tell()
