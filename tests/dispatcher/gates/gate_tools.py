"""Opens gates for tests and holds the slots that they grant."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dispatcher.broker.contract.ledger import Ledger, Quotas
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.memory.broker import MemoryLedger, MemoryQuotas, wall_clock_ms
from dispatcher.gates.building import GateDependencies, build_gate
from dispatcher.gates.catalogue import parse_gate
from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError, Slot
from dispatcher.gates.metering.meter import Meters


def candidate(tenant: str = "default", size: int = 10) -> DispatchCandidate:
    return DispatchCandidate("same", "same", tenant, 0, size)


@asynccontextmanager
async def open_gate(
    type: str,
    params: Mapping[str, Any] | None = None,
    *,
    ledger: Ledger | None = None,
    quotas: Quotas | None = None,
    meters: Meters | None = None,
) -> AsyncIterator[DispatchGate]:
    """The gate of a configuration, entered; ledger and quotas are in memory by default."""
    async with AsyncExitStack() as stack:
        dependencies = GateDependencies(
            "pool",
            ledger or MemoryLedger(wall_clock_ms),
            quotas or MemoryQuotas(wall_clock_ms),
            meters or await stack.enter_async_context(Meters()),
        )
        spec = parse_gate({"type": type, "params": dict(params or {})}, "gate")
        yield await stack.enter_async_context(build_gate(spec, dependencies))


class HeldSlots:
    """The slots that a gate granted, held until released."""

    def __init__(self, gate: DispatchGate) -> None:
        self._gate = gate
        self._stack = AsyncExitStack()
        self._held: list[tuple[AsyncExitStack, Slot]] = []

    def __len__(self) -> int:
        return len(self._held)

    async def ask(self, one: DispatchCandidate | None = None) -> RefusedError | None:
        """Acquire one more slot; returns the refusal, if any."""
        stack = AsyncExitStack()
        try:
            slot = await stack.enter_async_context(self._gate.admit(one or candidate()))
        except RefusedError as refusal:
            return refusal
        self._held.append((stack, slot))
        return None

    async def refused(self, one: DispatchCandidate | None = None) -> RefusedError:
        """Ask for one more slot, which the gate does not grant."""
        refusal = await self.ask(one)
        assert refusal is not None
        return refusal

    async def admit_all(self, one: DispatchCandidate | None = None, most: int = 1000) -> int:
        """Acquire slots until the gate refuses; returns how many."""
        before = len(self)
        while len(self) - before < most and await self.ask(one) is None:
            pass
        return len(self) - before

    async def release_oldest(self, outcome: Outcome = Outcome.ACCEPTED, retry_after_ms: int = 0) -> None:
        stack, slot = self._held.pop(0)
        slot.outcome, slot.retry_after_ms = outcome, retry_after_ms
        await stack.aclose()
