"""A queue within one process: everybody who opens it shares one `QueueStore`."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from dispatcher.broker.contract.ledger import Changes
from dispatcher.broker.contract.message import (
    Claim,
    DeadLetter,
    DispatchCandidate,
    ErrorCode,
    Fault,
    Request,
    Result,
)
from dispatcher.broker.contract.queue import (
    ConflictError,
    LeasedResult,
    QueueRules,
    State,
    TenantBacklog,
    Totals,
)
from dispatcher.broker.contract.validation import KEY_CONFLICT, check_key, digest
from dispatcher.broker.memory.request_table import RequestTable


@dataclass(frozen=True, slots=True)
class _Keyed:
    digest: str
    request: Request
    expires_ms: int


class QueueStore:
    """One queue: its requests, its idempotency keys, and whoever has it open."""

    def __init__(self) -> None:
        self.table = RequestTable(self._on_cancelled)
        self.keys: dict[tuple[str, str], _Keyed] = {}
        self.open_queues: set[MemoryQueue] = set()

    def _on_cancelled(self, owner: str, fence: str) -> None:
        for queue in self.open_queues:
            queue.add_cancelled(owner, fence)


class MemoryQueue:
    """Implements `Queue` of `broker.contract`. There is no server to lose: the only QueueErrors are those of a refusal."""

    def __init__(self, name: str, rules: QueueRules, store: QueueStore, clock_ms: Callable[[], int]) -> None:
        self.name = name
        self._rules = rules
        self._store = store
        self._table = store.table
        self._now = clock_ms
        self._seen = store.table.changes.count
        self._owners: set[str] = set()
        self._cancelled: set[str] = set()
        self._cancellations = Changes()

    async def submit(self, request: Request, *, idempotency_key: str | None = None) -> Request:
        now = self._now()
        if idempotency_key is None:
            return self._table.submit(now, request)
        check_key(idempotency_key)
        key, body = (request.tenant, idempotency_key), digest(request)
        known = self._store.keys.get(key)
        if known is not None and known.expires_ms > now:
            if known.digest != body:
                raise ConflictError(KEY_CONFLICT)
            return known.request
        accepted = self._table.submit(now, request)
        bodiless = replace(accepted, payload=b"")
        self._store.keys[key] = _Keyed(body, bodiless, accepted.deadline_ms + self._rules.result_ttl_ms)
        return accepted

    async def peek(self, limit: int, *, skip_tenants: Collection[str] = ()) -> Sequence[DispatchCandidate]:
        candidates = self._table.peek(self._now(), limit, skip_tenants)
        self._seen = self._table.changes.count
        return candidates

    async def claim(self, limit: int, *, owner: str, skip_tenants: Collection[str] = ()) -> Sequence[Claim]:
        self._owners.add(owner)
        claims = self._table.claim(self._now(), limit, owner, skip_tenants)
        self._seen = self._table.changes.count
        return claims

    async def extend(self, claims: Sequence[Claim]) -> Sequence[bool]:
        now = self._now()
        return [self._table.extend(now, claim) for claim in claims]

    async def finish(self, claim: Claim, result: Result, *, dead_letter: str = "") -> bool:
        return self._table.finish(self._now(), claim, result, dead_letter)

    async def retry(self, claim: Claim, delay_ms: int, *, fault: Fault | None = None) -> bool:
        return self._table.retry(self._now(), claim, delay_ms, fault)

    async def release(self, claims: Sequence[Claim], *, sent: bool = False) -> int:
        return sum([self._table.release(claim, sent=sent) for claim in claims])

    async def cancel(self, id: str, token: str | None = None) -> State:
        return self._table.cancel(self._now(), id, token)

    async def sweep(self) -> int:
        now = self._now()
        for key in [key for key, keyed in self._store.keys.items() if keyed.expires_ms <= now]:
            del self._store.keys[key]
        return self._table.process_due(now)

    async def reject(self, raw: bytes, reason: str, *, id: str | None = None, code: ErrorCode) -> None:
        self._table.reject(self._now(), raw, reason, id, code)

    async def wait(self, timeout: float) -> bool:
        changes, seen = self._table.changes, self._seen
        next_due_ms = self._table.next_due_ms()
        until_next = float("inf") if next_due_ms is None else max(0.0, (next_due_ms - self._now()) / 1000)
        if until_next > 0:
            await changes.wait(min(timeout, until_next), seen)
        return until_next <= timeout or changes.count != seen

    async def cancelled(self, timeout: float) -> Collection[str]:
        if not self._cancelled:
            await self._cancellations.wait(timeout)
        fences, self._cancelled = self._cancelled, set()
        return fences

    async def state(self, id: str, token: str | None = None) -> tuple[State, Result | None]:
        self._table.process_due(self._now())
        state, number = self._table.find(id, token)
        return state, self._table.results.get(number)

    async def wait_result(self, id: str, token: str | None = None, *, timeout: float) -> Result | None:
        try:
            async with asyncio.timeout(timeout):
                while True:
                    seen = self._table.finished.count
                    _, result = await self.state(id, token)
                    if result is not None:
                        return result
                    await self._table.finished.wait(timeout, seen)
        except TimeoutError:
            return None

    async def lease_results(self, limit: int, *, lease_ms: int = 300_000) -> Sequence[LeasedResult]:
        return self._table.results.lease(self._now(), limit, lease_ms)

    async def ack_results(self, leased: Sequence[LeasedResult]) -> int:
        now = self._now()
        return sum([self._table.results.ack(now, one) for one in leased])

    async def forget(self, id: str, token: str) -> bool:
        _, number = self._table.find(id, token)
        return self._table.results.remove(self._now(), number)

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        return self._table.dead_letters(limit)

    async def totals(self) -> Totals:
        return self._table.totals()

    async def backlog(self, limit: int) -> Sequence[TenantBacklog]:
        return self._table.backlog(limit)

    def add_cancelled(self, owner: str, fence: str) -> None:
        """Record a cancelled claim if one of our owners holds it."""
        if owner in self._owners:
            self._cancelled.add(fence)
            self._cancellations.tell()
            self._table.changes.tell()
