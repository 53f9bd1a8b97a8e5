"""The broker within one process: queues, ledgers and quotas in memory, shared by name."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from dispatcher.broker.contract.ledger import Ledger
from dispatcher.broker.contract.queue import Queue, QueueRules
from dispatcher.broker.contract.quota import Quotas
from dispatcher.broker.contract.validation import checked_name, checked_rules
from dispatcher.broker.memory.ledger import MemoryLedger
from dispatcher.broker.memory.queue import MemoryQueue, QueueStore
from dispatcher.broker.memory.quota import MemoryQuotas


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

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
