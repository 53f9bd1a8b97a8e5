"""One contract for the quotas of both brokers; each test has two replicas."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from dispatcher.broker.ledger import Refusal
from dispatcher.broker.memory.broker import wall_clock_ms
from dispatcher.broker.memory.quota import MemoryQuotas
from dispatcher.broker.quota import Grant, Quota, QuotaMode, Quotas
from dispatcher.broker.redis.connection import connect
from dispatcher.broker.redis.quota import RedisQuotas

PLACES = Quota(2, QuotaMode.CONCURRENCY, lease_ms=3000)
RATE = Quota(2, QuotaMode.RATE, window_ms=1000)


@pytest.fixture(params=["memory", "redis"])
async def replicas(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Quotas, Quotas]]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            shared = MemoryQuotas(wall_clock_ms)
            yield shared, shared
            return
        url: str = request.getfixturevalue("redis_url")
        clients = [await stack.enter_async_context(connect(url)) for _ in range(2)]
        one, other = [await stack.enter_async_context(RedisQuotas(client)) for client in clients]
        yield one, other


def granted(answer: Grant | Refusal) -> Grant:
    assert isinstance(answer, Grant), answer
    return answer


def refused(answer: Grant | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


async def test_two_places_a_third_is_refused_until_one_comes_back(replicas: tuple[Quotas, Quotas]) -> None:
    one, other = replicas
    first = granted(await one.acquire("a", PLACES))
    granted(await other.acquire("a", PLACES))
    refusal = refused(await other.acquire("a", PLACES))
    assert "quota of a" in refusal.reason
    granted(await other.acquire("b", PLACES))  # another tenant's is another
    waiting = asyncio.create_task(other.wait(30, seen=refusal.seen))
    await one.release(first, used=True)
    await asyncio.wait_for(waiting, 20)
    granted(await other.acquire("a", PLACES))
    refused(await one.acquire("a", PLACES))


async def test_20_a_place_is_kept_by_heartbeats_and_comes_back_in_silence(
    replicas: tuple[Quotas, Quotas],
) -> None:
    one, other = replicas
    kept, _lost = granted(await one.acquire("a", PLACES)), granted(await one.acquire("a", PLACES))
    begun, taken = time.monotonic(), list[Grant]()
    while time.monotonic() < begun + 7.5:
        await one.heartbeat([kept])
        await other.heartbeat(taken)
        answer = await other.acquire("a", PLACES)
        if isinstance(answer, Grant):
            assert time.monotonic() - begun > 2.99, "before its lease had ended"
            taken.append(answer)
        await asyncio.sleep(0.02)
    assert len(taken) == 1


async def test_20_giving_back_twice_frees_one_place(replicas: tuple[Quotas, Quotas]) -> None:
    one, other = replicas
    first = granted(await one.acquire("a", PLACES))
    granted(await other.acquire("a", PLACES))
    await one.release(first, used=True)
    await one.release(first, used=True)
    await one.heartbeat([])
    granted(await one.acquire("a", PLACES))
    refused(await other.acquire("a", PLACES))


async def test_two_starts_in_any_window(replicas: tuple[Quotas, Quotas]) -> None:
    one, other = replicas
    starts: list[tuple[float, float]] = []
    until = time.monotonic() + 2.5
    while time.monotonic() < until or len(starts) < 4:  # it opens again
        for quotas in (one, other):
            before = time.monotonic()
            answer = await quotas.acquire("a", RATE)
            if isinstance(answer, Grant):
                starts.append((before, time.monotonic()))
                await quotas.release(answer, used=True)
            else:
                assert answer.until_ms is not None
                assert answer.until_ms - await quotas.now_ms() <= 1000
        await asyncio.sleep(0.01)

    for (before, _), (_, after) in zip(starts, starts[2:], strict=False):
        assert after - before > 0.99


async def test_a_start_that_was_not_used_does_not_count(replicas: tuple[Quotas, Quotas]) -> None:
    one, other = replicas
    first = granted(await one.acquire("a", RATE))
    granted(await other.acquire("a", RATE))
    refused(await other.acquire("a", RATE))
    await one.release(first, used=False)
    granted(await other.acquire("a", RATE))
