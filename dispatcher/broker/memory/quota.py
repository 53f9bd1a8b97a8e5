"""Tenant quotas within one process: for each key the end of every grant."""

from collections.abc import Callable, Collection

from dispatcher.broker.contract.ledger import Refusal
from dispatcher.broker.contract.message import new_token
from dispatcher.broker.contract.quota import Grant, Quota, QuotaMode
from dispatcher.broker.contract.wake_up import Changes


class MemoryQuotas:
    """Implements `dispatcher.broker.contract.quota.Quotas`; `clock_ms` is the broker's clock."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._ends: dict[tuple[str, QuotaMode], dict[str, int]] = {}
        self._changes = Changes()

    async def now_ms(self) -> int:
        return self._clock_ms()

    async def acquire(self, key: str, quota: Quota) -> Grant | Refusal:
        now = self._clock_ms()
        ends = self._ends.setdefault((key, quota.mode), {})
        for id in [id for id, end in ends.items() if end <= now]:
            del ends[id]
        if len(ends) >= quota.limit:
            until = min(ends.values(), default=None)
            return Refusal(f"the quota of {key} is used up", until, self._changes.count)
        grant = Grant(key, new_token(), quota)
        ends[grant.id] = now + _duration_ms(quota)
        return grant

    async def heartbeat(self, grants: Collection[Grant]) -> None:
        for grant in grants:
            if grant.quota.mode is QuotaMode.CONCURRENCY:
                ends = self._ends.setdefault((grant.key, grant.quota.mode), {})
                ends[grant.id] = self._clock_ms() + _duration_ms(grant.quota)

    async def release(self, grant: Grant, *, used: bool) -> None:
        if grant.quota.mode is QuotaMode.RATE and used:
            return
        ends = self._ends.get((grant.key, grant.quota.mode), {})
        if ends.pop(grant.id, None) is not None:
            self._changes.tell()
        if not ends:
            self._ends.pop((grant.key, grant.quota.mode), None)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)


def _duration_ms(quota: Quota) -> int:
    return quota.window_ms if quota.mode is QuotaMode.RATE else quota.lease_ms
