"""The ledger of a target; each test has two replicas that share it."""

import asyncio
import time
from dataclasses import replace
from fractions import Fraction

import pytest

from dispatcher.broker.capacity.target_ledger import REASONS
from dispatcher.broker.contract.ledger import Ledger, Reading, Refusal, Reservation
from tests.dispatcher.broker.contract.conftest import OpenLedgers
from tests.eventually import asked_until
from tests.in_time import by, with_more_time

HOUR = 3600.0


async def reading(ledger: Ledger, headroom: float = 100) -> Reading:
    return Reading(Fraction(str(headroom)), await ledger.now_ms())


def reserved(answer: Reservation | Refusal) -> Reservation:
    assert isinstance(answer, Reservation), answer
    return answer


def refused(answer: Reservation | Refusal, code: str) -> Refusal:
    assert isinstance(answer, Refusal), answer
    assert answer.reason == REASONS[code]
    return answer


async def later_reading(ledger: Ledger, headroom: float = 100) -> Reading:
    """One that is later than everything that happened."""
    now = await ledger.now_ms()
    while (found := await reading(ledger, headroom)).at_ms <= now:
        await asyncio.sleep(0)
    return found


async def test_11_replicas_share_the_headroom_of_a_reading(ledgers: tuple[Ledger, Ledger]) -> None:
    now = await reading(ledgers[0], 30.7)
    answers = await asyncio.gather(*(ledgers[number % 2].reserve(now, 1) for number in range(64)))
    assert sum(isinstance(answer, Reservation) for answer in answers) == 30


@pytest.mark.parametrize("waits_before", [True, False])
async def test_what_one_gives_back_the_other_gets(ledgers: tuple[Ledger, Ledger], waits_before: bool) -> None:
    one, other = ledgers
    now = await reading(one, 1)
    first = reserved(await one.reserve(now, 1))
    refusal = refused(await other.reserve(now, 1), "spent")
    waiting = asyncio.create_task(other.wait(HOUR, seen=refusal.seen)) if waits_before else None
    await asyncio.sleep(0)
    await one.release(first, accepted=True)
    await asyncio.wait_for(waiting or other.wait(HOUR, seen=refusal.seen), 90)
    reserved(await other.reserve(now, 1))


async def test_a_wait_ends_with_its_time(ledgers: tuple[Ledger, Ledger]) -> None:
    started = time.monotonic()
    async with asyncio.timeout(90):
        await ledgers[0].wait(0.05)
    assert time.monotonic() - started > 0.04


async def test_requests_seen_by_the_reading_are_not_counted_twice(ledgers: tuple[Ledger, Ledger]) -> None:
    one, _ = ledgers
    for _ in range(3):
        reserved(await one.reserve(await reading(one, 3), 1))
    newer = await later_reading(one, 2)
    assert [isinstance(await one.reserve(newer, 1), Reservation) for _ in range(3)] == [True, True, False]


async def test_what_others_leave_is_refilled_before_the_next_reading(ledgers: tuple[Ledger, Ledger]) -> None:
    """Two run and both show: one ends, and another may go in its place though the page has no room for it."""
    one, other = ledgers
    running = [reserved(await one.reserve(await reading(one, 2), 1)) for _ in range(2)]
    full = replace(await later_reading(one, 0.5), allotment=Fraction(2))
    refused(await other.reserve(full, 1), "spent")
    await one.release(running[0], accepted=True)
    reserved(await other.reserve(full, 1))
    refused(await one.reserve(full, 1), "spent")


async def test_a_look_counts_the_units_of_all_replicas(ledgers: tuple[Ledger, Ledger]) -> None:
    one, other = ledgers
    for ledger, units in ((one, 3), (other, 40)):
        reserved(await ledger.reserve(await reading(ledger, 100), units))
    before = await one.now_ms()
    look = await other.state()
    assert look.in_flight == 43
    assert before <= look.now_ms <= await one.now_ms()


@with_more_time(500)
async def test_the_units_that_lapse_or_are_heard_of_again_are_counted(
    open_ledgers: OpenLedgers, ms: int
) -> None:
    async with open_ledgers(ms) as (one, _):
        paused = reserved(await one.reserve(await reading(one), 7))
        await asked_until(one.state, lambda found: not found.in_flight)
        heard_ms = await one.now_ms()
        async with by(heard_ms + one.lease_ms, one.now_ms):
            await one.heartbeat([paused])
            full = replace(await reading(one, 0.5), allotment=Fraction(8))
            reserved(await one.reserve(full, 1))
            refused(await one.reserve(full, 1), "spent")


async def test_units_and_one_request_larger_than_all_room(ledgers: tuple[Ledger, Ledger]) -> None:
    one, other = ledgers
    now = await reading(one, 614.4)
    large = reserved(await one.reserve(now, 700))
    refused(await other.reserve(now, 1), "spent")
    await one.release(large, accepted=True)
    reserved(await one.reserve(now, 600))
    refused(await other.reserve(now, 100), "spent")
    reserved(await other.reserve(now, 14))


async def test_no_headroom_lets_nobody_in(ledgers: tuple[Ledger, Ledger]) -> None:
    refused(await ledgers[0].reserve(await reading(ledgers[0], 0), 1), "spent")
    first = reserved(await ledgers[0].reserve(await reading(ledgers[0], 0.001), 1))
    refused(await ledgers[1].reserve(await reading(ledgers[0], 0.001), 1), "spent")
    assert first.units == 1


@with_more_time(1_000)
async def test_a_heartbeat_keeps_it_and_silence_gives_it_back(open_ledgers: OpenLedgers, ms: int) -> None:
    async with open_ledgers(ms) as (one, other):
        now, lease_ms = await reading(one, 2), one.lease_ms
        begun_ms = heard_ms = await one.now_ms()
        async with by(begun_ms + lease_ms, one.now_ms):
            kept, lost = reserved(await one.reserve(now, 1)), reserved(await one.reserve(now, 1))
        granted: list[Reservation] = []
        while heard_ms < begun_ms + 2.5 * lease_ms:
            async with by(heard_ms + lease_ms, one.now_ms):
                heard_ms = await one.now_ms()
                await one.heartbeat([kept])
                await other.heartbeat(granted)
                answer = await other.reserve(now, 1)
            if isinstance(answer, Reservation):
                granted.append(answer)
            await asyncio.sleep(lease_ms / 20_000)
        async with by(heard_ms + lease_ms, one.now_ms):
            assert len(granted) == 1, "one lapsed, one was kept"
            await one.release(lost, accepted=True)  # its place is another's by now
            refused(await other.reserve(now, 1), "spent")


@with_more_time(500)
async def test_one_that_lapsed_is_counted_again_when_it_is_heard_of(
    open_ledgers: OpenLedgers, ms: int
) -> None:
    async with open_ledgers(ms) as (one, other):
        now = await reading(one, 1)
        paused = reserved(await one.reserve(now, 1))
        async with asyncio.timeout(90):
            while not isinstance(taken := await other.reserve(now, 1), Reservation):
                await asyncio.sleep(0.01)
        await other.release(taken, accepted=True)
        heard_ms = await one.now_ms()
        async with by(heard_ms + one.lease_ms, one.now_ms):
            await one.heartbeat([paused])
            refused(await other.reserve(now, 1), "spent")


async def test_12_overload_closes_it_for_both_until_a_later_reading(ledgers: tuple[Ledger, Ledger]) -> None:
    one, other = ledgers
    old = await reading(one)
    running = reserved(await other.reserve(old, 1))
    await one.report_overload()
    refused(await one.reserve(old, 1), "stale")
    refused(await other.reserve(old, 1), "stale")
    new = await later_reading(one)
    probe = reserved(await other.reserve(new, 1))
    assert probe.probe
    refused(await one.reserve(new, 1), "probe")
    await other.release(running, accepted=True)
    refused(await one.reserve(new, 1), "probe")
    await other.release(probe, accepted=True)
    window = [await one.reserve(new, 1) for _ in range(3)]
    assert [isinstance(answer, Reservation) for answer in window] == [True, True, False]
    refused(window[2], "ramp")
    await one.release(reserved(window[0]), accepted=True)
    more = [await other.reserve(new, 1) for _ in range(4)]
    assert [isinstance(answer, Reservation) for answer in more] == [True, True, True, False]
    await other.report_overload()
    refused(await one.reserve(new, 1), "stale")


@with_more_time(200)
async def test_12_retry_after_is_waited_for(open_ledgers: OpenLedgers, ms: int) -> None:
    async with open_ledgers(ms + 600_000) as (one, other):
        before = await one.now_ms()
        async with by(before + ms, one.now_ms):
            await one.report_overload(retry_after_ms=ms)
            reported = await one.now_ms()
            new = await later_reading(one)
            refusal = refused(await other.reserve(new, 1), "asked")
            assert refusal.until_ms is not None
            assert before + ms <= refusal.until_ms <= reported + ms
        while await one.now_ms() < refusal.until_ms:
            await asyncio.sleep(0.01)
        assert reserved(await other.reserve(new, 1)).probe


async def test_a_caller_who_goes_away_leaves_nothing_behind(ledgers: tuple[Ledger, Ledger]) -> None:
    one, other = ledgers
    now = await reading(one, 1)
    gone = asyncio.create_task(one.reserve(now, 1))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    if not gone.cancelled():  # it was quicker
        await one.release(reserved(gone.result()), accepted=True)
    reserved(await other.reserve(now, 1))
