"""Limits each tenant, over all replicas: requests in flight, or starts in a window."""

import asyncio
from contextlib import suppress
from typing import Final

from dispatcher.broker.contract.ledger import Refusal
from dispatcher.broker.contract.message import DispatchCandidate
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.contract.quota import Grant, Quota, QuotaMode, Quotas
from dispatcher.gates.admission import ReservingGate
from dispatcher.gates.built_in.heartbeat import heartbeat
from dispatcher.gates.gate import Outcome, RefusedError, Scope, Slot

RECHECK_INTERVAL: Final = 1.0
"""Seconds after which a refused tenant is tried again: the lease of a killed replica ends without a wake-up."""
OUTAGE_PAUSE: Final = 0.5
"""Seconds between two tries while the broker is away."""


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
        await self._stack.enter_async_context(heartbeat(self._send_heartbeat, self._quota.lease_ms))

    def budget(self) -> float:
        return 1.0

    async def reserve(self, candidate: DispatchCandidate) -> Grant:
        try:
            answer = await self._quotas.acquire(f"{self._prefix}{candidate.tenant}", self._quota)
        except QueueError as error:
            raise RefusedError(str(error), Scope.QUEUE, lambda: asyncio.sleep(OUTAGE_PAUSE)) from error
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

    async def _send_heartbeat(self) -> None:
        if self.reserved and self._quota.mode is QuotaMode.CONCURRENCY:
            await self._quotas.heartbeat(self.reserved)
