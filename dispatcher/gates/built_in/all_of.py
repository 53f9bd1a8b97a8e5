"""Combines several gates: a request goes if all of them admit it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from adsum.resource_owner import ResourceOwner
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.gates.gate import DispatchGate, Slot


class AllOfGate(ResourceOwner):
    """Asks the gates in order and releases them in reverse; a refusal releases what earlier gates granted."""

    def __init__(self, gates: Sequence[DispatchGate]) -> None:
        self.gates = tuple(gates)

    async def _open(self) -> None:
        for gate in self.gates:
            await self._stack.enter_async_context(gate)

    def budget(self) -> float:
        return min(gate.budget() for gate in self.gates)

    @asynccontextmanager
    async def admit(self, candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        """The outcome that is set in the slot is passed on to every gate."""
        async with AsyncExitStack() as granted:
            slots = [await granted.enter_async_context(gate.admit(candidate)) for gate in self.gates]
            shared = Slot()
            try:
                yield shared
            finally:
                for slot in slots:
                    slot.outcome, slot.retry_after_ms = shared.outcome, shared.retry_after_ms
