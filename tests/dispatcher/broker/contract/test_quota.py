"""Tenants' quotas; each test has two replicas."""

import asyncio
import time
from dataclasses import replace

from dispatcher.broker.contract.ledger import Grant, Quota, QuotaMode, Quotas, Refusal
from tests.in_time import by, with_more_time

HOUR_MS = 3_600_000
PLACES = Quota(2, QuotaMode.CONCURRENCY, lease_ms=HOUR_MS)


def granted(answer: Grant | Refusal) -> Grant:
    assert isinstance(answer, Grant), answer
    return answer


def refused(answer: Grant | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


async def test_two_places_a_third_is_refused_until_one_comes_back(quotas: tuple[Quotas, Quotas]) -> None:
    one, other = quotas
    first = granted(await one.acquire("a", PLACES))
    granted(await other.acquire("a", PLACES))
    refusal = refused(await other.acquire("a", PLACES))
    assert "quota of a" in refusal.reason
    granted(await other.acquire("b", PLACES))  # another tenant's is another
    waiting = asyncio.create_task(other.wait(3600, seen=refusal.seen))
    await one.release(first, used=True)
    await asyncio.wait_for(waiting, 90)
    granted(await other.acquire("a", PLACES))
    refused(await one.acquire("a", PLACES))


@with_more_time(1_000)
async def test_20_a_place_is_kept_by_heartbeats_and_comes_back_in_silence(
    quotas: tuple[Quotas, Quotas], ms: int
) -> None:
    one, other = quotas
    places, key = replace(PLACES, lease_ms=ms), f"a{ms}"
    begun_ms = heard_ms = await one.now_ms()
    kept, _lost = granted(await one.acquire(key, places)), granted(await one.acquire(key, places))
    taken: list[Grant] = []
    while heard_ms < begun_ms + 2.5 * ms:
        async with by(heard_ms + ms, one.now_ms):
            heard_ms = await one.now_ms()
            await one.heartbeat([kept])
            await other.heartbeat(taken)
            answer = await other.acquire(key, places)
        if isinstance(answer, Grant):
            assert await one.now_ms() >= begun_ms + ms, "before its lease had ended"
            taken.append(answer)
        await asyncio.sleep(ms / 50_000)
    assert len(taken) == 1


async def test_20_giving_back_twice_frees_one_place(quotas: tuple[Quotas, Quotas]) -> None:
    one, other = quotas
    first = granted(await one.acquire("a", PLACES))
    granted(await other.acquire("a", PLACES))
    await one.release(first, used=True)
    await one.release(first, used=True)
    await one.heartbeat([])
    granted(await one.acquire("a", PLACES))
    refused(await other.acquire("a", PLACES))


async def test_two_starts_in_any_window(quotas: tuple[Quotas, Quotas]) -> None:
    one, other = quotas
    rate = Quota(2, QuotaMode.RATE, window_ms=1000)
    starts: list[tuple[float, float]] = []
    until = time.monotonic() + 2.5
    while time.monotonic() < until or len(starts) < 4:  # it opens again
        for replica in (one, other):
            before = time.monotonic()
            answer = await replica.acquire("a", rate)
            if isinstance(answer, Grant):
                starts.append((before, time.monotonic()))
                await replica.release(answer, used=True)
            else:
                assert answer.until_ms is not None
                assert answer.until_ms - await replica.now_ms() <= 1000
        await asyncio.sleep(0.01)

    for (before, _), (_, after) in zip(starts, starts[2:], strict=False):
        assert after - before > 0.99


async def test_a_start_that_was_not_used_does_not_count(quotas: tuple[Quotas, Quotas]) -> None:
    one, other = quotas
    rate = Quota(2, QuotaMode.RATE, window_ms=HOUR_MS)
    first = granted(await one.acquire("a", rate))
    granted(await other.acquire("a", rate))
    refused(await other.acquire("a", rate))
    await one.release(first, used=False)
    granted(await other.acquire("a", rate))
