"""Several gates, all of which must agree: all or none."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from dispatcher.broker.message import DispatchCandidate
from dispatcher.gates.gate import DispatchGate, Slot
from runtime.resource_owner import ResourceOwner


class AllOfGate(ResourceOwner):
    """Asked in the given order, released in the reverse one; one that refuses undoes what those before it granted."""

    def __init__(self, gates: Sequence[DispatchGate]) -> None:
        self.gates = tuple(gates)

    async def _open(self) -> None:
        for gate in self.gates:
            await self._stack.enter_async_context(gate)

    def budget(self) -> float:
        return min(gate.budget() for gate in self.gates)

    @asynccontextmanager
    async def admit(self, candidate: DispatchCandidate) -> AsyncIterator[Slot]:
        """As `dispatcher.gates.gate.DispatchGate`; what the target said is told to every gate."""
        async with AsyncExitStack() as granted:
            slots = [await granted.enter_async_context(gate.admit(candidate)) for gate in self.gates]
            shared = Slot()
            try:
                yield shared
            finally:
                for slot in slots:
                    slot.outcome, slot.retry_after_ms = shared.outcome, shared.retry_after_ms
