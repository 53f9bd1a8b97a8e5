"""One contract for the ledgers of both brokers; each test has two replicas that share a target."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis as BlockingRedis

from dispatcher.broker.account import REASONS, TargetAccount
from dispatcher.broker.ledger import Ledger, Reading, Refusal, Reservation
from dispatcher.broker.memory.broker import wall_clock_ms
from dispatcher.broker.memory.ledger import MemoryLedger
from dispatcher.broker.redis.connection import connect
from dispatcher.broker.redis.ledger import SCRIPT, RedisLedger
from tests.redis_server import RedisServer

LEASE = 3000
Eventually = Callable[..., Awaitable[float]]


@pytest.fixture(params=["memory", "redis"])
async def replicas(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """Two that share a target, with a lease of 3 s."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            shared = MemoryLedger(wall_clock_ms, lease_ms=LEASE)
            yield shared, shared
            return
        url: str = request.getfixturevalue("redis_url")
        clients = [await stack.enter_async_context(connect(url)) for _ in range(2)]
        one, other = [
            await stack.enter_async_context(RedisLedger(client, "pool", lease_ms=LEASE)) for client in clients
        ]
        yield one, other


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


async def test_11_replicas_share_the_headroom_of_a_reading(replicas: tuple[Ledger, Ledger]) -> None:
    now = await reading(replicas[0], 30.7)
    answers = await asyncio.gather(*(replicas[number % 2].reserve(now, 1) for number in range(64)))
    assert sum(isinstance(answer, Reservation) for answer in answers) == 30


async def test_what_one_gives_back_the_other_gets(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    now = await reading(one, 1)
    first = reserved(await one.reserve(now, 1))
    refusal = refused(await other.reserve(now, 1), "spent")
    waiting = asyncio.create_task(other.wait(30, seen=refusal.seen))
    await one.release(first, accepted=True)
    await asyncio.wait_for(waiting, 20)
    reserved(await other.reserve(now, 1))


async def test_a_wake_up_before_the_wait_is_not_missed(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    now = await reading(one, 1)
    first = reserved(await one.reserve(now, 1))
    refusal = refused(await other.reserve(now, 1), "spent")
    await one.release(first, accepted=True)
    await asyncio.wait_for(other.wait(30, seen=refusal.seen), 20)


async def test_a_wait_ends_with_its_time(replicas: tuple[Ledger, Ledger]) -> None:
    started = time.monotonic()
    await replicas[0].wait(0.05)
    assert 0.04 < time.monotonic() - started < 20


async def test_requests_seen_by_the_reading_are_not_counted_twice(replicas: tuple[Ledger, Ledger]) -> None:
    one, _ = replicas
    for _ in range(3):
        reserved(await one.reserve(await reading(one, 3), 1))
    newer = await later_reading(one, 2)
    assert [isinstance(await one.reserve(newer, 1), Reservation) for _ in range(3)] == [True, True, False]


async def test_what_others_leave_is_refilled_before_the_next_reading(replicas: tuple[Ledger, Ledger]) -> None:
    """Two run and both show: one ends, and another may go in its place though the page has no room for it."""
    one, other = replicas
    running = [reserved(await one.reserve(await reading(one, 2), 1)) for _ in range(2)]
    full = replace(await later_reading(one, 0.5), allotment=Fraction(2))
    refused(await other.reserve(full, 1), "spent")
    await one.release(running[0], accepted=True)
    reserved(await other.reserve(full, 1))
    refused(await one.reserve(full, 1), "spent")


async def test_a_look_counts_the_units_of_all_replicas(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    for ledger, units in ((one, 3), (other, 40)):
        reserved(await ledger.reserve(await reading(ledger, 100), units))
    before = await one.now_ms()
    look = await other.state()
    assert look.in_flight == 43
    assert before <= look.now_ms <= await one.now_ms()


async def test_the_units_that_lapse_or_are_heard_of_again_are_counted(
    replicas: tuple[Ledger, Ledger], eventually: Eventually
) -> None:
    one, _ = replicas
    paused = reserved(await one.reserve(await reading(one), 7))

    async def has_lapsed() -> bool:
        return not (await one.state()).in_flight

    await eventually(has_lapsed)
    await one.heartbeat([paused])
    full = replace(await reading(one, 0.5), allotment=Fraction(8))
    reserved(await one.reserve(full, 1))
    refused(await one.reserve(full, 1), "spent")


async def test_units_and_one_request_larger_than_all_room(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    now = await reading(one, 614.4)
    large = reserved(await one.reserve(now, 700))
    refused(await other.reserve(now, 1), "spent")
    await one.release(large, accepted=True)
    reserved(await one.reserve(now, 600))
    refused(await other.reserve(now, 100), "spent")
    reserved(await other.reserve(now, 14))


async def test_no_headroom_lets_nobody_in(replicas: tuple[Ledger, Ledger]) -> None:
    refused(await replicas[0].reserve(await reading(replicas[0], 0), 1), "spent")
    first = reserved(await replicas[0].reserve(await reading(replicas[0], 0.001), 1))
    refused(await replicas[1].reserve(await reading(replicas[0], 0.001), 1), "spent")
    assert first.units == 1


async def test_a_heartbeat_keeps_it_and_silence_gives_it_back(
    replicas: tuple[Ledger, Ledger], eventually: Eventually
) -> None:
    one, other = replicas
    now = await reading(one, 2)
    kept, lost = reserved(await one.reserve(now, 1)), reserved(await one.reserve(now, 1))
    ends = time.monotonic() + 2.5 * LEASE / 1000
    granted: list[Reservation] = []
    while time.monotonic() < ends:
        await one.heartbeat([kept])
        answer = await other.reserve(now, 1)
        if isinstance(answer, Reservation):
            granted.append(answer)
        if granted:
            await other.heartbeat(granted)
        await asyncio.sleep(LEASE / 1000 / 20)
    assert len(granted) == 1, "one lapsed, one was kept"
    await one.release(lost, accepted=True)  # its place is another's by now
    refused(await other.reserve(now, 1), "spent")


async def test_one_that_lapsed_is_counted_again_when_it_is_heard_of(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    now = await reading(one, 1)
    paused = reserved(await one.reserve(now, 1))
    while not isinstance(taken := await other.reserve(now, 1), Reservation):
        await asyncio.sleep(0.01)
    await other.release(taken, accepted=True)
    await one.heartbeat([paused])
    refused(await other.reserve(now, 1), "spent")


async def test_12_overload_closes_it_for_both_until_a_later_reading(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
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


async def test_12_retry_after_is_waited_for(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    await one.report_overload(retry_after_ms=200)
    before = await one.now_ms()
    new = await later_reading(one)
    refusal = refused(await other.reserve(new, 1), "asked")
    assert refusal.until_ms is not None
    assert 0 < refusal.until_ms - before <= 200
    while await one.now_ms() < refusal.until_ms:
        await asyncio.sleep(0.01)
    assert reserved(await other.reserve(new, 1)).probe


async def test_a_caller_who_goes_away_leaves_nothing_behind(replicas: tuple[Ledger, Ledger]) -> None:
    one, other = replicas
    now = await reading(one, 1)
    gone = asyncio.create_task(one.reserve(now, 1))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    if not gone.cancelled():  # it was quicker
        await one.release(reserved(gone.result()), accepted=True)
    reserved(await other.reserve(now, 1))


Step = tuple[Any, ...]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("R"),
            st.integers(1, 3),
            st.integers(-3, 1),
            st.sampled_from([0, 0.5, 1, 3, 8, 40]),
            st.sampled_from([0, 0, 2.5, 6, 30]),
        ),
        st.tuples(st.just("L")),
        st.tuples(st.just("F"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("F"), st.integers(0, 9), st.just(True)),
        st.tuples(st.just("O"), st.sampled_from([0, 0, 3])),
    ),
    max_size=40,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_the_script_keeps_the_same_book_as_the_account(redis_server: RedisServer, steps: list[Step]) -> None:
    """Each step is told to both, with the broker's own time; every answer must be the same."""
    redis_server.flush()
    account = TargetAccount(60_000)
    with BlockingRedis(port=redis_server.port) as client:
        script = client.register_script(SCRIPT.read_text())

        def told(*words: object) -> tuple[int, list[Any]]:
            now, _, answer = script(["{t}began", "{t}leases", "{t}state"], ["{t}channel", 60_000, "", *words])
            return now, [word.decode() if isinstance(word, bytes) else word for word in answer]

        def clock() -> int:
            now: int = script(["{t}began", "{t}leases", "{t}state"], ["{t}channel", 60_000, ""])[0]
            return now

        members: list[str] = []
        for number, step in enumerate(steps):
            if step[0] == "R":
                _, units, ago, headroom, allotment = step
                member, exact = f"{units}:{number}", Fraction(str(headroom))
                at = clock() + ago
                now, answer = told("R", member, units, at, int(exact), int(exact > 0), int(allotment))
                expected = account.reserve(now, Reading(exact, at, Fraction(str(allotment))), units, member)
                if isinstance(expected, Reservation):
                    assert answer[:2] == [1, int(expected.probe)]
                    members.append(member)
                else:
                    until = -1 if expected.until_ms is None else expected.until_ms
                    assert answer[0] == 0
                    assert (REASONS[answer[1]], answer[2]) == (expected.reason, until)
            elif step[0] == "F" and members:
                member = members.pop(step[1] % len(members))
                _, answer = told("F", member, int(step[2]))
                assert answer == [int(account.release(member, accepted=step[2]))]
            elif step[0] == "L":
                _, in_flight = told("L")
                assert in_flight == [account.in_flight]
            elif step[0] == "O":
                now, _ = told("O", step[1])
                account.report_overload(now, step[1])
