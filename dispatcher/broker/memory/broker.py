"""The broker within one process: queues, ledgers and quotas in memory, shared by name."""

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Self

from dispatcher.broker.capacity.target_ledger import TargetLedger
from dispatcher.broker.contract.ledger import (
    Changes,
    Grant,
    Ledger,
    LedgerState,
    Quota,
    QuotaMode,
    Quotas,
    Reading,
    Refusal,
    Reservation,
)
from dispatcher.broker.contract.message import new_token
from dispatcher.broker.contract.queue import Queue, QueueRules
from dispatcher.broker.contract.validation import checked_name, checked_rules
from dispatcher.broker.memory.queue import MemoryQueue, QueueStore


class MemoryLedger:
    """Implements `dispatcher.broker.contract.ledger.Ledger`; `clock_ms` is the broker's clock."""

    def __init__(self, clock_ms: Callable[[], int], *, lease_ms: int = 15_000) -> None:
        self._clock_ms = clock_ms
        self._ledger = TargetLedger(lease_ms)
        self._began: dict[str, int] = {}
        self._changes = Changes()

    @property
    def lease_ms(self) -> int:
        return self._ledger.lease_ms

    async def now_ms(self) -> int:
        return self._clock_ms()

    async def state(self) -> LedgerState:
        now = self._clock_ms()
        self._drop_lapsed(now)
        return LedgerState(now, self._ledger.in_flight)

    async def reserve(self, reading: Reading, units: int) -> Reservation | Refusal:
        now = self._clock_ms()
        self._drop_lapsed(now)
        answer = self._ledger.reserve(now, reading, units, new_token())
        if isinstance(answer, Refusal):
            return Refusal(answer.reason, answer.until_ms, self._changes.count)
        self._began[answer.id] = now
        return answer

    async def heartbeat(self, reservations: Sequence[Reservation]) -> None:
        now = self._clock_ms()
        for reservation in reservations:
            # A heartbeat that was on its way when its reservation was released must not count it again.
            if (began := self._began.get(reservation.id)) is not None:
                self._ledger.heartbeat(now, reservation, began)
        self._drop_lapsed(now)

    async def release(self, reservation: Reservation, *, accepted: bool) -> None:
        self._began.pop(reservation.id, None)
        if self._ledger.release(reservation.id, accepted=accepted):
            self._changes.tell()

    async def report_overload(self, retry_after_ms: int = 0) -> None:
        self._ledger.report_overload(self._clock_ms(), retry_after_ms)

    async def wait(self, timeout: float, *, seen: int = -1) -> None:
        await self._changes.wait(timeout, seen)

    def _drop_lapsed(self, now: int) -> None:
        if self._ledger.drop_lapsed(now):
            self._changes.tell()


class MemoryQuotas:
    """Implements `dispatcher.broker.contract.ledger.Quotas`; `clock_ms` is the broker's clock."""

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


def wall_clock_ms() -> int:
    """The time of this machine's clock, in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class MemoryBroker:
    """Implements `Broker`. Queues and ledgers of one name are shared; `clock_ms` is its clock."""

    def __init__(self, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._stores: dict[str, QueueStore] = {}
        self._ledgers: dict[str, MemoryLedger] = {}
        self._quotas = MemoryQuotas(clock_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def now_ms(self) -> int:
        return self._clock_ms()

    async def ping(self) -> bool:
        return True

    @asynccontextmanager
    async def queue(self, name: str, rules: QueueRules) -> AsyncIterator[Queue]:
        if rules.result_list:
            raise ValueError(
                f"queue {name!r} sends its results to a Redis list, which the memory broker does not have; use a Redis broker"
            )
        store = self._stores.setdefault(checked_name(name), QueueStore())
        store.table.set_rules(checked_rules(name, rules))
        queue = MemoryQueue(name, rules, store, self._clock_ms)
        store.open_queues.add(queue)
        try:
            yield queue
        finally:
            store.open_queues.discard(queue)

    @asynccontextmanager
    async def ledger(self, target: str) -> AsyncIterator[Ledger]:
        yield self._ledgers.setdefault(target, MemoryLedger(self._clock_ms))

    @asynccontextmanager
    async def quotas(self) -> AsyncIterator[Quotas]:
        yield self._quotas
