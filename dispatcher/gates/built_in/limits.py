"""Gates that limit what one process or one tenant has in flight, and the combination of several gates."""

from collections.abc import Sequence
from contextlib import suppress

from dispatcher.broker.contract.ledger import Changes, Grant, Quota, QuotaMode, Quotas, Refusal
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import QueueError
from dispatcher.gates.admission import RECHECK_INTERVAL, Admission, HeldAdmissions, ReservingGate
from dispatcher.gates.gate import DispatchGate, Outcome, RefusedError, Scope, Slot


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


class TenantQuotaGate(ReservingGate[Grant]):
    """One quota for each tenant under the key `prefix` + tenant. Gates with the same prefix share it.

    Refusals have the scope TENANT. `budget()` is always 1: a tenant without quota does not close the gate for others.
    """

    def __init__(self, quotas: Quotas, quota: Quota, prefix: str) -> None:
        super().__init__()
        self._quotas = quotas
        self._quota = quota
        self._prefix = prefix

    async def _open(self) -> None:
        if self._quota.mode is QuotaMode.CONCURRENCY:
            await self.keep_leases(self._quotas.heartbeat, self._quota.lease_ms)

    def budget(self) -> float:
        return 1.0

    async def reserve(self, candidate: DispatchCandidate) -> Grant:
        answer = await self._quotas.acquire(f"{self._prefix}{candidate.tenant}", self._quota)
        if isinstance(answer, Refusal):
            raise RefusedError(answer.reason, Scope.TENANT, lambda: self._until_changed(answer))
        return answer

    async def give_back(self, held: Grant, slot: Slot) -> None:
        """A start that was not used does not count in the window."""
        await self._quotas.release(held, used=slot.outcome is not Outcome.UNUSED)

    async def _until_changed(self, refusal: Refusal) -> None:
        timeout = RECHECK_INTERVAL
        if self._quota.mode is QuotaMode.RATE and refusal.until_ms is not None:
            with suppress(QueueError):
                timeout = max(0.0, (refusal.until_ms - await self._quotas.now_ms()) / 1000)
        await self._quotas.wait(timeout, seen=refusal.seen)


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
        async with HeldAdmissions() as granted:
            for gate in self.gates:
                await granted.enter(gate, candidate)
            return granted.take_all()

    async def give_back(self, held: Sequence[Admission], slot: Slot) -> None:
        """Every gate learns the outcome."""
        for admission in reversed(held):
            await admission.release(slot.outcome, slot.retry_after_ms)
