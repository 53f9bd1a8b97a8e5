"""Limits the requests of this process that are in flight."""

from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.wake_up import Changes
from dispatcher.gates.admission import ReservingGate
from dispatcher.gates.gate import RefusedError, Scope, Slot


class LocalConcurrencyGate(ReservingGate[None]):
    """Knows neither the target's load nor other replicas."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._in_flight = 0
        self._changes = Changes()

    async def _open(self) -> None: ...

    def budget(self) -> float:
        """The free share of the limit."""
        return max(0.0, (self._limit - self._in_flight) / self._limit)

    async def reserve(self, candidate: DispatchCandidate) -> None:
        if self._in_flight >= self._limit:
            seen = self._changes.count
            reason = f"{self._limit} requests of this process are in flight"
            raise RefusedError(reason, Scope.QUEUE, lambda: self._changes.wait(60.0, seen))
        self._in_flight += 1

    async def give_back(self, held: None, slot: Slot) -> None:
        self._in_flight -= 1
        self._changes.tell()
