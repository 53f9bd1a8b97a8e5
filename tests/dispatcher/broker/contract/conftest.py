"""Two replicas of each part of a broker. `tests/dispatcher/conftest.py` has the brokers."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from dispatcher.broker.contract.ledger import Ledger, Quotas
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules
from dispatcher.broker.memory.broker import MemoryLedger, wall_clock_ms
from dispatcher.broker.opening import open_broker
from dispatcher.broker.redis.client.connection import connect
from dispatcher.broker.redis.ledger import RedisLedger

LedgerPair = tuple[Ledger, Ledger]
OpenLedgers = Callable[[int], AbstractAsyncContextManager[LedgerPair]]


@pytest.fixture
async def queue(broker: Broker) -> AsyncIterator[Queue]:
    """A queue with the default rules."""
    async with broker.queue("q", QueueRules()) as opened:
        yield opened


@pytest.fixture
async def ledgers(open_ledgers: OpenLedgers) -> AsyncIterator[LedgerPair]:
    """The ledger of one target, opened twice, with leases that no test outlives."""
    async with open_ledgers(600_000) as pair:
        yield pair


@pytest.fixture
def open_ledgers(broker_name: str, broker_url: str) -> OpenLedgers:
    """The same with leases of so many milliseconds; those of a broker in `--broker-url` are its own."""

    @asynccontextmanager
    async def opened(lease_ms: int) -> AsyncIterator[LedgerPair]:
        if broker_name == "memory":
            shared = MemoryLedger(wall_clock_ms, lease_ms=lease_ms)
            yield shared, shared
        elif broker_name == "redis":
            async with (
                connect(broker_url) as one,
                connect(broker_url) as other,
                RedisLedger(one, f"pool{lease_ms}", lease_ms=lease_ms) as first,
                RedisLedger(other, f"pool{lease_ms}", lease_ms=lease_ms) as second,
            ):
                yield first, second
        else:
            async with (
                open_broker(broker_url) as one_broker,
                open_broker(broker_url) as other_broker,
                one_broker.ledger(f"pool{lease_ms}") as first_ledger,
                other_broker.ledger(f"pool{lease_ms}") as second_ledger,
            ):
                yield first_ledger, second_ledger

    return opened


@pytest.fixture
async def quotas(broker_name: str, broker_url: str) -> AsyncIterator[tuple[Quotas, Quotas]]:
    """The quotas, opened twice."""
    async with open_broker(broker_url) as one, one.quotas() as first:
        if broker_name == "memory":
            yield first, first
            return
        async with open_broker(broker_url) as other, other.quotas() as second:
            yield first, second
