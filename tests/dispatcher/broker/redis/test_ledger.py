"""What only replicas in processes of their own, a broker that goes away, and a model of ledger.lua can show."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from adsum.tasks import background
from dispatcher.broker.capacity.target_ledger import REASONS, TargetLedger
from dispatcher.broker.contract.ledger import Grant, Quota, QuotaMode, Reading, Refusal, Reservation
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.redis.client.connection import connect
from dispatcher.broker.redis.ledger import SCRIPT, RedisLedger, RedisQuotas
from dispatcher.gates.gate import Outcome
from tests.dispatcher.gates.gate_tools import HeldSlots, open_gate
from tests.dispatcher.replica import replica
from tests.dispatcher.target_simulator import TargetSimulator
from tests.eventually import asked_until, eventually
from tests.in_time import by, with_more_time, without_a_gap
from tests.redis_server import RedisServer

LEASE = 6.0


async def shared_by_three(url: str, gate: dict[str, Any], limit: int, leases: str) -> None:
    """Three processes have `limit` places in all; one is killed, and within a lease the others have its places."""
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(url, int(LEASE * 1000), json.dumps(gate))) for _ in range(3)]
        await eventually(lambda: all(one.ready for one in replicas), within=90)
        for one in replicas:
            one.go()
        await eventually(lambda: all(one.held >= 0 for one in replicas), within=90)
        await eventually(lambda: sum(one.held for one in replicas) == limit, within=90)
        dead = max(replicas, key=lambda one: one.held)
        living = [one for one in replicas if one is not dead]
        had, lost = sum(one.held for one in living), dead.held
        async with connect(url) as client:
            dead.end()
            ends = left = await lease_ends(client, leases)
            while left.keys() == ends.keys():
                held = sum(one.held for one in living)
                left = await lease_ends(client, leases)
                assert held == had or left.keys() != ends.keys(), "its requests may still run at the target"
                await asyncio.sleep(0.02)
            seconds, _ = await client.time()
            given_back = [at for member, at in ends.items() if member not in left]
            assert max(given_back) < (seconds + 1) * 1000, "each once its lease had ended"
        await eventually(lambda: sum(one.held for one in living) == had + lost, within=90)
        settled = time.monotonic() + 1.5  # by now the others' leases would have ended, were they not renewed
        while time.monotonic() < settled:
            assert sum(one.held for one in living) == limit
            await asyncio.sleep(0.02)


async def lease_ends(client: Redis, leases: str) -> dict[bytes, float]:
    """When the lease of each place ends, in milliseconds of the broker's clock, as it stands in Redis."""
    [key] = [key async for key in client.scan_iter(leases)]
    return dict(await client.zrange(key, 0, -1, withscores=True))


async def test_09_a_killed_replica_gives_its_reservations_back_within_a_lease(redis_url: str) -> None:
    target = TargetSimulator()
    target.others = 20
    async with target.serving() as url:
        params = {
            "url": f"{url}/metrics",
            "metric": "load",
            "max_count_per_pod": 50,
            "lag": "1h",
            "interval": "1h",
        }
        await shared_by_three(redis_url, {"type": "endpoint-scrape", "params": params}, 30, "*:leases")


async def test_20_a_killed_replica_gives_its_quota_back_within_a_lease(redis_url: str) -> None:
    params = {"mode": "concurrency", "limit": 7, "lease": f"{LEASE}s"}
    await shared_by_three(redis_url, {"type": "redis-quota", "params": params}, 7, "*{quota:*")


async def test_a_broker_that_is_away_lets_nobody_in_and_what_it_missed_is_told(tmp_path: Path) -> None:
    with RedisServer(tmp_path, durable=True) as server:
        client = connect(server.url)
        async with (
            client,
            RedisLedger(client, "pool") as ledger,
            open_gate("constant", ledger=ledger) as gate,
        ):
            slots = HeldSlots(gate)
            assert await slots.admit_all(most=2) == 2
            server.stop()
            refusal = await slots.refused()
            assert "does not answer" in str(refusal)
            await slots.release_oldest(Outcome.OVERLOADED, retry_after_ms=60_000)  # raises nothing
            with pytest.raises(QueueError):
                await ledger.now_ms()
            server.start()
            async with asyncio.timeout(90):
                while "asked to wait" not in (said := str(await slots.ask())):
                    assert "does not answer" in said


async def test_what_was_reserved_when_the_answer_was_lost_comes_back_with_its_lease(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        client = connect(server.url)
        async with client, RedisLedger(client, "pool", lease_ms=400) as ledger:
            reading = Reading(Fraction(1), await ledger.now_ms())
            server.pause()
            with pytest.raises(QueueError):
                await ledger.reserve(reading, 1)
            server.resume()  # and now the script runs
            await asked_until(
                lambda: ledger.reserve(reading, 1), lambda found: isinstance(found, Reservation)
            )


@with_more_time(3_000)
async def test_11_a_broker_that_lost_the_book_gives_no_place_twice(
    tmp_path_factory: pytest.TempPathFactory, ms: int
) -> None:
    """One holds all three places, and says so three times a lease; the other asks the empty book for one."""

    async def asked() -> Reservation | Refusal | None:
        try:
            return await other.reserve(Reading(Fraction(3), await other.now_ms() - 60_000), 1)
        except QueueError:
            return None

    async def answers() -> int:
        with suppress(QueueError):
            return await other.now_ms()
        return 0

    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(server.url)) for _ in range(2)]
            one, other = [
                await stack.enter_async_context(RedisLedger(client, "pool", lease_ms=ms))
                for client in clients
            ]
            reading = Reading(Fraction(3), await one.now_ms())
            async with by(reading.at_ms + ms, one.now_ms):
                held = [await one.reserve(reading, 1) for _ in range(3)]
                reserved = [place for place in held if isinstance(place, Reservation)]
                assert isinstance(await asked(), Refusal)
            server.kill()
            server.start()
            await stack.enter_async_context(background(beat(one, reserved)))
            reasons = set()
            async with without_a_gap(ms / 2000, answers), asyncio.timeout(90):
                while REASONS["spent"] not in reasons:
                    answer = await asked()
                    assert not isinstance(answer, Reservation), "there is no fourth place"
                    if isinstance(answer, Refusal):
                        reasons.add(answer.reason)
                    await asyncio.sleep(0.02)
                assert REASONS["lost"] in reasons
            await one.release(reserved[0], accepted=True)
            assert isinstance(await asked(), Reservation)


async def beat(ledger: RedisLedger, reserved: list[Reservation]) -> None:
    while True:
        await asyncio.sleep(ledger.lease_ms / 3000)
        with suppress(QueueError):
            await ledger.heartbeat(reserved)


async def test_a_listener_that_was_cut_off_listens_again(redis_url: str) -> None:
    async with connect(redis_url) as client, RedisLedger(client, "pool") as ledger:
        await client.client_kill_filter(_type="pubsub")
        await asked_until(
            lambda: client.pubsub_numsub("adsum:{target:pool}:changed"), lambda found: found[0][1]
        )
        reading = Reading(Fraction(1), await ledger.now_ms())
        first = await ledger.reserve(reading, 1)
        refusal = await ledger.reserve(reading, 1)
        assert isinstance(first, Reservation)
        assert isinstance(refusal, Refusal)
        waiting = asyncio.create_task(ledger.wait(3600, seen=refusal.seen))
        await ledger.release(first, accepted=True)
        await asyncio.wait_for(waiting, 90)


async def test_every_key_of_a_script_has_one_hash_tag(tmp_path: Path) -> None:
    with RedisServer(tmp_path, cluster=True) as server:
        client = connect(server.url)
        async with client, RedisLedger(client, "a pool") as ledger, RedisQuotas(client) as quotas:
            answer = await ledger.reserve(Reading(Fraction(1), await ledger.now_ms()), 1)
            assert isinstance(answer, Reservation)
            await ledger.report_overload()
            grant = await quotas.acquire("quota:a tenant", Quota(1, QuotaMode.CONCURRENCY))
            assert isinstance(grant, Grant)


async def test_all_keys_vanish_when_nobody_cares_any_more(redis_url: str) -> None:
    client = connect(redis_url)
    async with client, RedisLedger(client, "pool") as ledger, RedisQuotas(client) as quotas:
        await ledger.reserve(Reading(Fraction(1), await ledger.now_ms()), 1)
        await ledger.report_overload()
        await quotas.acquire("a", Quota(1))
        keys = [key async for key in client.scan_iter()]
        assert len(keys) == 4
        for key in keys:
            assert 0 < await client.pttl(key) <= 86_400_000


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
def test_the_script_keeps_the_same_book_as_the_plain_ledger(
    redis_server: RedisServer, steps: list[Step]
) -> None:
    """Each step is told to both, with the broker's own time; every answer must be the same."""
    redis_server.flush()
    ledger = TargetLedger(60_000)
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
                expected = ledger.reserve(now, Reading(exact, at, Fraction(str(allotment))), units, member)
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
                assert answer == [int(ledger.release(member, accepted=step[2]))]
            elif step[0] == "L":
                _, in_flight = told("L")
                assert in_flight == [ledger.in_flight]
            elif step[0] == "O":
                now, _ = told("O", step[1])
                ledger.report_overload(now, step[1])
