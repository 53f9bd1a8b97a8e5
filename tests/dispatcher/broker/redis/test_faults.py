"""Owners that die or freeze, a broker that dies or freezes, answers that are lost."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dispatcher.broker.contract.message import Claim, ErrorCode, Result
from dispatcher.broker.contract.queue import Queue, QueueError, QueueRules, State
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.broker.redis.client.connection import connect
from tests.dispatcher.queued import HOUR, answer, claimed, counts, submitted, until_ms
from tests.eventually import eventually
from tests.in_time import by, with_more_time
from tests.redis_server import RedisServer

SHORT = QueueRules(lease_ms=400)
HALF_AN_HOUR = HOUR // 2


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One that comes back with everything after it was killed."""
    with RedisServer(tmp_path_factory.mktemp("durable"), durable=True) as server:
        yield server


async def drained(queue: Queue, count: int) -> list[Result]:
    """Work on what is left until `count` requests have their result; each result once."""
    results: list[Result] = []

    async def all_there() -> bool:
        for claim in await queue.claim(100, owner="rescuer"):
            await queue.finish(claim, answer(claim, b"from the rescuer"))
        await queue.sweep()
        leased = await queue.lease_results(1000)
        await queue.ack_results(leased)
        results.extend(one.result for one in leased)
        return len(results) >= count

    await eventually(all_there, within=90)
    return results


async def test_03_a_clock_that_went_back_leaves_no_claim_to_a_dead_owner(redis_url: str) -> None:
    """What a failover to a server whose clock is an hour behind leaves: a lease that ends in an hour."""
    async with RedisBroker(redis_url) as broker, broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a")
        claim = await claimed(queue)
        await broker._client.zincrby("adsum:{q}:leases", HOUR, claim.fence.partition(".")[0])
        await queue.sweep()
        [(_, until_ms_)] = await broker._client.zrange("adsum:{q}:leases", 0, -1, withscores=True)
        assert until_ms_ - await broker.now_ms() <= 15_000


async def test_03_a_clock_that_went_back_leaves_no_claim_to_a_dead_owner_in_memory() -> None:
    now = 10 * HOUR
    async with MemoryBroker(lambda: now) as broker, broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a", within_ms=5 * HOUR)
        await claimed(queue)
        now -= HOUR
        assert await queue.sweep() == 0
        now += 15_000
        assert await queue.sweep() == 1
        assert (await claimed(queue)).delivery == 2


CLOCKS = """
import asyncio, os, sys, time
shift = float(sys.argv[2])
real = time.time
time.time = lambda: real() + shift
time.time_ns = lambda: int((real() + shift) * 1e9)
from dispatcher.broker.contract.message import Request, Result
from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.redis.broker import RedisBroker

async def main():
    async with RedisBroker(sys.argv[1]) as broker, broker.queue("q", QueueRules(lease_ms=60_000)) as queue:
        now = await broker.now_ms()
        await queue.submit(Request("a", b"{}", now + 1_800_000))
        [claim] = await queue.claim(1, owner="o")
        print(claim.leased_until_ms - now, claim.request.created_ms - now)
        assert await queue.retry(claim, 300)
        if not await queue.peek(1):
            assert await queue.wait(1800)
        [again] = await queue.claim(1, owner="o")
        print(await broker.now_ms() - now)
        assert await queue.finish(again, Result("a", "", 200, b"ok"))
        [leased] = await queue.lease_results(1, lease_ms=60_000)
        assert not await queue.lease_results(1)
        print(leased.result.finished_ms - now)

asyncio.run(main())
"""


@pytest.mark.parametrize("shift", [-3600, 0, 3600])
async def test_03_a_client_whose_clock_is_an_hour_off_changes_nothing(redis_url: str, shift: int) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CLOCKS, redis_url, str(shift)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lease, created, due, finished = map(int, done.stdout.split())
    assert 60_000 <= lease < 60_000 + HALF_AN_HOUR
    assert 0 <= created < HALF_AN_HOUR
    assert 300 <= due < HALF_AN_HOUR
    assert 300 <= finished < HALF_AN_HOUR


async def test_05_a_killed_broker_comes_back_and_nothing_is_lost(server: RedisServer) -> None:
    async with RedisBroker(server.url) as broker, broker.queue("q", QueueRules()) as queue:
        for n in range(20):
            await submitted(broker, queue, f"r{n}")
        held = await queue.claim(10, owner="o")
        server.kill()
        assert not await broker.ping()
        for asking in (queue.peek(1), queue.finish(held[0], answer(held[0])), queue.wait(1), queue.totals()):
            with pytest.raises(QueueError, match="does not answer"):
                await asking
        server.start()
        await eventually(broker.ping)
        assert [await queue.finish(claim, answer(claim)) for claim in held] == [True] * 10
        results = await drained(queue, 20)
        assert len({result.id for result in results}) == 20
        assert await counts(queue) == {"submitted": 20, "succeeded": 20}


async def test_05_whoever_waits_is_woken_after_the_broker_was_away(server: RedisServer) -> None:
    async with RedisBroker(server.url) as broker, broker.queue("q", QueueRules()) as queue:
        server.kill()
        server.start()
        await eventually(broker.ping)
        assert not await queue.peek(1)
        waiting = asyncio.create_task(queue.wait(HOUR))
        result = asyncio.create_task(queue.wait_result("a", timeout=HOUR))
        await submitted(broker, queue, "a")
        async with asyncio.timeout(90):
            while not await waiting:  # it may be told of the new subscription first
                waiting = asyncio.create_task(queue.wait(HOUR))
            claim = await claimed(queue)
            await queue.finish(claim, answer(claim))
            assert (await result) is not None


async def test_05_a_frozen_broker_is_said_to_be_away_and_a_result_may_be_told_again(
    server: RedisServer,
) -> None:
    async with RedisBroker(server.url) as broker, broker.queue("q", QueueRules()) as queue:
        await submitted(broker, queue, "a")
        claim = await claimed(queue)
        server.pause()
        async with asyncio.timeout(90):
            with pytest.raises(QueueError, match="does not answer.*asking again is safe"):
                await queue.finish(claim, answer(claim, b"first"))
        server.resume()  # the script that was sent runs after all: its answer is lost
        await eventually(broker.ping)
        assert await queue.finish(claim, answer(claim, b"second"))
        assert len(await queue.lease_results(9)) == 1
        assert await counts(queue) == {"submitted": 1, "succeeded": 1}


async def test_05_whoever_waits_for_a_lease_to_end_does_not_prolong_the_time_after_a_silence(
    redis_url: str,
) -> None:
    """Nobody else asks meanwhile; the waiting itself is no silence."""
    async with RedisBroker(redis_url) as broker, broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a")
        await claimed(queue, owner="dead")
        await broker._client.hset("adsum:{q}:pulse", "at", await broker.now_ms() - HALF_AN_HOUR)
        async with asyncio.timeout(45):
            while not await queue.peek(1):
                await queue.wait(30)


async def test_a_broker_that_was_emptied_gets_its_scripts_again(server: RedisServer) -> None:
    async with RedisBroker(server.url) as broker, broker.queue("q", QueueRules()) as queue:
        await submitted(broker, queue, "a")
        assert await broker._client.script_flush()
        assert len(await queue.peek(1)) == 1
        claim = await claimed(queue)
        assert await queue.finish(claim, answer(claim))


async def test_nobody_there_is_said_at_the_door_without_the_password() -> None:
    with pytest.raises(QueueError, match=r"redis://127\.0\.0\.1:1/0 does not answer") as caught:
        async with RedisBroker("redis://user:secret@127.0.0.1:1/0"):
            pass
    assert "secret" not in str(caught.value)


def test_another_kind_of_url_is_refused_without_its_password() -> None:
    with pytest.raises(ValueError, match="is no Redis URL; expected redis://") as caught:
        RedisBroker("http://user:secret@host/")
    assert "secret" not in str(caught.value)


async def test_a_body_that_the_broker_lost_is_answered(redis_url: str) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        for id, size in (("small", 10), ("large", 100_000)):
            await submitted(broker, queue, id, payload=b"x" * size)
        for key in await broker._client.keys("adsum:{q}:b:*"):
            await broker._client.delete(key)
        assert await queue.claim(9, owner="o") == []
        results = [leased.result for leased in await queue.lease_results(9)]
        assert {result.error_code for result in results} == {ErrorCode.PAYLOAD_UNAVAILABLE}
        assert await counts(queue) == {"submitted": 2, "failed": 2}


async def test_who_stops_asking_leaves_the_connections_usable(redis_url: str) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        for turns in range(40):
            asking = asyncio.create_task(queue.wait_result("nobody", timeout=30))
            for _ in range(turns % 8):
                await asyncio.sleep(0)
            asking.cancel()
            async with asyncio.timeout(90):
                with pytest.raises(asyncio.CancelledError):
                    await asking
            assert (await queue.totals()).submitted == 0


async def test_a_command_swallows_no_cancellation(redis_url: str) -> None:
    """redis-py's `socket_timeout` did: its owner waited for ever for a task that went on asking."""

    async def ask_for_ever() -> None:
        while True:
            await client.time()
            await asyncio.sleep(0.002)

    async with connect(redis_url) as client:
        await client.ping()
        for turns in range(60):
            asking = asyncio.create_task(ask_for_ever())
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            async with asyncio.timeout(60):
                await asyncio.wait([asking])
            assert asking.cancelled()


async def test_hundreds_may_ask_at_once(redis_url: str) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        asking = [queue.wait_result(f"r{n}", timeout=HOUR) for n in range(500)]
        waiting = asyncio.gather(*asking)
        for n in range(500):
            await submitted(broker, queue, f"r{n}")
        while claims := await queue.claim(64, owner="o"):
            await asyncio.gather(*(queue.finish(claim, answer(claim)) for claim in claims))
        async with asyncio.timeout(90):
            assert all(await waiting)


async def test_nothing_is_left_of_what_is_over(redis_url: str) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        for n in range(100):
            await submitted(broker, queue, f"r{n}", tenant=f"t{n % 7}", within_ms=HOUR)
        for turn in range(4):
            for claim in await queue.claim(50, owner="o"):
                if turn < 2:
                    await queue.retry(claim, 0)
                else:
                    await queue.finish(claim, answer(claim))
        await queue.ack_results(await queue.lease_results(1000))
        left = {key.decode() for key in await broker._client.keys("*")}
        assert {key for key in left if not key.startswith("adsum:{q}:f:")} == {
            f"adsum:{{q}}:{name}" for name in ("counts", "events", "last", "now", "pulse", "s:0")
        }


async def test_many_that_wait_under_one_id_cost_a_submission_no_more(redis_url: str) -> None:
    async def commands(queue: Queue, id: str) -> int:
        """Redis counts the commands of scripts too."""
        before = await calls(broker)
        await submitted(broker, queue, id)
        assert (await queue.state(id))[0] is State.PENDING
        return await calls(broker) - before

    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        await asyncio.gather(*(submitted(broker, queue, "same id") for _ in range(500)))
        assert await commands(queue, "same id") < await commands(queue, "its own id") + 40


async def test_the_index_of_an_id_forgets_what_is_gone_behind_many_that_wait(redis_url: str) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        for _ in range(40):
            await submitted(broker, queue, "same id", tenant="waits")
        for _ in range(200):
            await submitted(broker, queue, "same id", tenant="gone", within_ms=1000)
            claim = await claimed(queue, skip_tenants=["waits"])
            await queue.finish(claim, answer(claim))
            await broker._client.delete(*await broker._client.keys("adsum:{q}:r:*"))
        assert await broker._client.zcard("adsum:{q}:i:same id") <= 80


async def calls(broker: RedisBroker) -> int:
    stats = await broker._client.info("commandstats")
    return sum(count["calls"] for count in stats.values())


@with_more_time(20)
async def test_results_that_nobody_fetched_leave_nothing_behind(redis_url: str, ms: int) -> None:
    rules, name = QueueRules(result_ttl_ms=ms), f"q{ms}"
    async with RedisBroker(redis_url) as broker, broker.queue(name, rules) as queue:
        for _ in range(40 if ms < 1000 else 10):
            await submitted(broker, queue, "same id")
            claim = await claimed(queue)
            await queue.finish(claim, answer(claim))
            await until_ms(broker, await broker.now_ms() + ms + 1)
        assert await broker._client.zcard(f"adsum:{{{name}}}:i:same id") <= 8
        await queue.sweep()
        assert await broker._client.exists(f"adsum:{{{name}}}:ready") == 0
        deadline_ms = await broker.now_ms() + ms
        async with by(deadline_ms, broker.now_ms):
            await submitted(broker, queue, "leased", deadline_ms=deadline_ms)
            claim = await claimed(queue)
            await queue.finish(claim, answer(claim))
            assert len(await queue.lease_results(9, lease_ms=1)) == 1
        await until_ms(broker, deadline_ms + 2 * ms)
        await queue.sweep()
        assert await broker._client.exists(*(f"adsum:{{{name}}}:{key}" for key in ("held", "i:leased"))) == 0


async def test_30_thousands_of_claims_and_results_are_counted_once_each(redis_url: str) -> None:
    """How many a second stands in benchmarks/README.md."""
    count = 3_000
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        await asyncio.gather(*(submitted(broker, queue, f"r{n}", payload=b"x" * 2048) for n in range(count)))

        async def work(claim: Claim) -> None:
            assert await queue.finish(claim, answer(claim, b"y" * 500))

        while claims := await queue.claim(64, owner="o"):
            await asyncio.gather(*map(work, claims))
        assert await counts(queue) == {"submitted": count, "succeeded": count}


@with_more_time(200)
async def test_a_late_result_is_found_although_results_are_kept_longer_since(redis_url: str, ms: int) -> None:
    short, long = (QueueRules(lease_ms=HOUR, result_ttl_ms=50), QueueRules(lease_ms=HOUR, result_ttl_ms=HOUR))
    async with RedisBroker(redis_url) as broker:
        async with broker.queue(f"q{ms}", short) as queue:
            deadline_ms = await broker.now_ms() + ms
            async with by(deadline_ms, broker.now_ms):
                late = await submitted(broker, queue, "same", deadline_ms=deadline_ms)
                claim = await claimed(queue)
        await until_ms(broker, late.deadline_ms + 200)  # the index of the id has ended
        async with broker.queue(f"q{ms}", long) as queue:
            await submitted(broker, queue, "same")
            assert await queue.finish(claim, answer(claim))
            assert (await queue.state("same", late.token))[0] is State.DONE


async def test_a_go_request_of_which_only_the_number_is_left_leaves_no_mark(redis_url: str) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        await submitted(broker, queue, "a")
        number = "000000000001"
        await broker._client.hset("adsum:{q}:go", number, "t\0a")
        await broker._client.delete(f"adsum:{{q}}:e:{number}")
        assert await queue.claim(1, owner="o") == []
        assert await broker._client.exists("adsum:{q}:go") == 0
