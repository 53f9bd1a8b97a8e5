"""Combines several gates: a request goes if all of them admit it."""

from collections.abc import Sequence

from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.gates.admission import Admission, Admissions, ReservingGate
from dispatcher.gates.gate import DispatchGate, Slot


class AllOfGate(ReservingGate[Sequence[Admission]]):
    """Asks the gates in order and releases them in reverse; a refusal releases what earlier gates granted."""

    def __init__(self, gates: Sequence[DispatchGate]) -> None:
        super().__init__()
        self.gates = tuple(gates)

    async def _open(self) -> None:
        for gate in self.gates:
            await self._stack.enter_async_context(gate)

    def budget(self) -> float:
        return min(gate.budget() for gate in self.gates)

    async def reserve(self, candidate: DispatchCandidate) -> Sequence[Admission]:
        async with Admissions() as granted:
            for gate in self.gates:
                await granted.enter(gate, candidate)
            return granted.take_all()

    async def give_back(self, held: Sequence[Admission], slot: Slot) -> None:
        """Every gate learns the outcome."""
        for admission in reversed(held):
            await admission.release(slot.outcome, slot.retry_after_ms)
