"""A claim: its lease, its fence, and how it is given back."""

import asyncio

import pytest

from dispatcher.broker.contract.message import ErrorCode, Fault, Result
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules, State
from tests.dispatcher.queued import HOUR, answer, claimed, claimed_again, counts, submitted, until_ms
from tests.eventually import eventually
from tests.in_time import by, with_more_time

SHORT = QueueRules(lease_ms=150)


async def test_what_is_claimed_is_claimed_by_nobody_else(broker: Broker) -> None:
    async with broker.queue("q", QueueRules()) as queue, broker.queue("q", QueueRules()) as other:
        for n in range(30):
            await submitted(broker, queue, f"r{n}")
        batches = await asyncio.gather(*(one.claim(3, owner="o") for one in (queue, other) * 6))
        ids = [claim.request.id for batch in batches for claim in batch]
        assert len(ids) == len(set(ids)) == 30
        assert await counts(queue) == {"submitted": 30, "pending": 30, "claimed": 30}


async def test_a_result_ends_it_once(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    claim = await claimed(queue)
    assert await queue.finish(claim, answer(claim))
    assert await queue.finish(claim, answer(claim, b"again"))  # an answer to the first may have been lost
    assert await queue.extend([claim]) == [False]
    assert not await queue.retry(claim, 0)
    assert await queue.release([claim]) == 0
    [leased] = await queue.lease_results(9)
    assert leased.result.payload == b"ok"
    assert leased.result.finished_ms > 0
    assert await queue.ack_results([leased]) == 1
    assert await queue.finish(claim, answer(claim))
    assert await counts(queue) == {"submitted": 1, "succeeded": 1}


async def test_02_whose_lease_ended_publishes_nothing_once_another_has_it(broker: Broker) -> None:
    async with broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a")
        old = await claimed(queue)
        new = await claimed_again(queue)
        assert (new.delivery, new.request.id) == (2, "a")
        assert not await queue.finish(old, answer(old, b"old"))
        assert not await queue.retry(old, 0)
        assert await queue.release([old]) == 0
        assert await queue.extend([old, new]) == [False, True]
        assert await queue.finish(new, answer(new, b"new"))
        assert not await queue.finish(old, answer(old, b"old"))
        [leased] = await queue.lease_results(9)
        assert leased.result.payload == b"new"
        assert await counts(queue) == {"submitted": 1, "succeeded": 1, "redelivered": 1}


async def test_02_a_late_result_counts_while_nobody_took_the_claim_back(broker: Broker) -> None:
    async with broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a")
        claim = await claimed(queue)
        await until_ms(broker, claim.leased_until_ms + 1)
        assert await queue.finish(claim, answer(claim))
        assert await counts(queue) == {"submitted": 1, "succeeded": 1}


@with_more_time(400)
async def test_a_heartbeat_keeps_a_claim(broker: Broker, ms: int) -> None:
    async with broker.queue(f"q{ms}", QueueRules(lease_ms=ms)) as queue:
        await submitted(broker, queue, "a")
        claim = await claimed(queue)
        ends_ms = claim.leased_until_ms
        for _ in range(3):
            async with by(ends_ms, broker.now_ms):
                await until_ms(broker, (asked_ms := await broker.now_ms()) + ms // 2)
                assert await queue.extend([claim]) == [True]
            ends_ms = asked_ms + ms // 2 + ms
        async with by(ends_ms, broker.now_ms):
            assert await broker.now_ms() > claim.leased_until_ms
            assert await queue.claim(1, owner="other") == []
            await queue.sweep()
            assert (await counts(queue))["claimed"] == 1


@with_more_time(150)
async def test_a_sweep_gives_back_what_nobody_holds_any_more(broker: Broker, ms: int) -> None:
    async with broker.queue(f"q{ms}", QueueRules(lease_ms=ms)) as queue:
        for n in range(3):
            await submitted(broker, queue, f"r{n}")
        last = (await queue.claim(3, owner="dead"))[-1]
        async with by(last.leased_until_ms, broker.now_ms):
            assert await queue.sweep() == 0
        given_back = 0

        async def all_are_given_back() -> bool:
            nonlocal given_back
            given_back += await queue.sweep()
            return given_back >= 3

        await eventually(all_are_given_back)
        assert given_back == 3
        assert await broker.now_ms() >= last.leased_until_ms
        assert await counts(queue) == {"submitted": 3, "pending": 3, "redelivered": 3}
        assert await queue.sweep() == 0


async def test_07_what_kills_whoever_claims_it_becomes_a_dead_letter(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(lease_ms=30, max_deliveries=3)) as queue:
        await submitted(broker, queue, "poison", payload=b"p" * 70_000)
        for delivery in (1, 2, 3):
            claim = await claimed_again(queue)
            assert claim.delivery == delivery

        async def is_buried() -> bool:
            assert await queue.claim(1, owner="o") == []
            return bool(await queue.dead_letters(5))

        await eventually(is_buried)
        [letter] = await queue.dead_letters(5)
        assert (letter.id, letter.raw) == ("poison", b"p" * 65_536)
        assert "claimed too often" in letter.reason
        [leased] = await queue.lease_results(5)
        assert leased.result.error_code is ErrorCode.INFERENCE_ERROR
        assert await counts(queue) == {"submitted": 1, "failed": 1, "redelivered": 2, "dead_letters": 1}


async def test_07_retries_and_releases_are_no_reason_for_a_dead_letter(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(max_deliveries=2)) as queue:
        await submitted(broker, queue, "a")
        for _ in range(5):
            assert await queue.retry(await claimed(queue), 0)
            assert await queue.release([await claimed(queue)]) == 1
        claim = await claimed(queue)
        assert claim.delivery == 6
        assert await counts(queue) == {"submitted": 1, "pending": 1, "claimed": 1, "retries": 5}


async def test_attempts_are_counted_over_deliveries(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    for attempt in range(3):
        claim = await claimed(queue)
        assert claim.attempt == attempt
        assert await queue.retry(claim, 0)
    assert await queue.release([await claimed(queue)], sent=True) == 1
    unsent = await claimed(queue)
    assert unsent.attempt == 4
    assert await queue.release([unsent]) == 1
    assert await queue.release([unsent]) == 1  # said again: nothing more
    assert (await claimed(queue)).attempt == 4


async def test_failed_attempts_are_counted_and_others_are_not(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    for fault in (Fault.FAILED, None, Fault.DISCONNECTED):
        claim = await claimed(queue)
        assert await queue.retry(claim, 0, fault=fault)
        assert await queue.retry(claim, 0, fault=fault)  # said again: counted once
    assert await queue.release([await claimed(queue)], sent=True) == 1
    claim = await claimed(queue)
    assert (claim.failures, claim.disconnects, claim.attempt) == (2, 1, 4)


async def test_a_request_that_is_given_up_is_a_dead_letter_with_its_result(
    broker: Broker, queue: Queue
) -> None:
    request = await submitted(broker, queue, "a", payload=b"p" * 70_000)
    claim = await claimed(queue)
    result = Result("", "", 500, b"broken", ErrorCode.INFERENCE_ERROR, "too often", 20)
    for _ in range(2):  # said again: one dead letter
        assert await queue.finish(claim, result, dead_letter="too often")
    [letter] = await queue.dead_letters(5)
    assert (letter.id, letter.raw, letter.reason) == ("a", b"p" * 65_536, "too often")
    _, kept = await queue.state("a", request.token)
    assert kept is not None
    assert (kept.status_code, kept.payload, kept.attempts) == (500, b"broken", 20)
    assert await counts(queue) == {"submitted": 1, "failed": 1, "dead_letters": 1}


async def test_whoever_was_killed_with_a_claim_may_have_sent_it(broker: Broker) -> None:
    async with broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a")
        await claimed(queue)
        assert (await claimed_again(queue)).attempt == 1


async def test_a_release_leaves_no_trace(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    first = await claimed(queue)
    assert await queue.release([first]) == 1
    assert await queue.release([first]) == 1  # an answer to the first may have been lost
    second = await claimed(queue)
    assert (second.delivery, second.attempt) == (1, 0)
    assert second.fence != first.fence
    assert await queue.release([first]) == 0
    assert await counts(queue) == {"submitted": 1, "pending": 1, "claimed": 1}


@with_more_time(300)
async def test_17_a_retry_is_not_seen_before_its_time_even_on_an_idle_queue(broker: Broker, ms: int) -> None:
    async with broker.queue(f"q{ms}", QueueRules()) as queue:
        await submitted(broker, queue, "a")
        claim = await claimed(queue)
        before = await broker.now_ms()
        async with by(before + ms, broker.now_ms):
            assert await queue.retry(claim, ms)
            assert await queue.retry(claim, ms)  # said again: nothing more
            assert await queue.state("a") == (State.DELAYED, None)
            assert await counts(queue) == {"submitted": 1, "pending": 1, "delayed": 1, "retries": 1}

        async def seen() -> bool:
            await queue.sweep()
            return bool(await queue.peek(1))

        await eventually(seen)
        assert await broker.now_ms() >= before + ms
        assert (await claimed(queue)).delivery == 2


async def test_17_whoever_waits_is_woken_when_a_retry_is_due(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    await queue.retry(await claimed(queue), 200)
    async with asyncio.timeout(90):
        if not await queue.peek(1):  # it may be due by now
            assert await queue.wait(HOUR)
    assert len(await queue.claim(1, owner="o")) == 1


async def test_a_wait_ends_by_itself(queue: Queue) -> None:
    await queue.peek(1)
    assert not await queue.wait(0.05)


@pytest.mark.parametrize("what", ["submit", "release", "retry"])
async def test_whoever_waits_is_woken_by_what_becomes_claimable(broker: Broker, what: str) -> None:
    async with broker.queue("q", QueueRules()) as queue, broker.queue("q", QueueRules()) as other:
        await submitted(broker, other, "held")
        held = await claimed(other)
        assert not await queue.peek(1)
        waiting = asyncio.create_task(queue.wait(30))
        async with asyncio.timeout(90):
            match what:
                case "submit":
                    await submitted(broker, other, "new")
                case "release":
                    await other.release([held])
                case "retry":
                    await other.retry(held, 0)
            assert await waiting
        assert len(await queue.peek(1)) == 1


async def test_nothing_is_missed_between_a_look_and_the_wait(broker: Broker) -> None:
    async with broker.queue("q", QueueRules()) as queue, broker.queue("q", QueueRules()) as other:
        for n in range(20):
            assert not await queue.peek(1)
            await submitted(broker, other, f"r{n}")
            async with asyncio.timeout(90):
                assert await queue.wait(30)
            claim = await claimed(queue)
            await queue.finish(claim, answer(claim))


async def test_whoever_waits_is_woken_by_the_end_of_a_lease(broker: Broker) -> None:
    async with broker.queue("q", SHORT) as queue:
        await submitted(broker, queue, "a")
        await claimed(queue, owner="dead")
        async with asyncio.timeout(90):
            while not await queue.peek(1):
                await queue.wait(30)


@pytest.mark.parametrize("where", ["pending", "delayed", "claimed"])
@pytest.mark.parametrize("found_by", ["sweep", "claim", "peek", "state"])
@with_more_time(80)
async def test_06_expired_anywhere_is_one_answer(broker: Broker, where: str, found_by: str, ms: int) -> None:
    async with broker.queue(f"q{ms}", QueueRules(lease_ms=100)) as queue:
        deadline_ms = await broker.now_ms() + ms
        async with by(deadline_ms, broker.now_ms):
            await submitted(broker, queue, "a", deadline_ms=deadline_ms)
            if where != "pending":
                claim = await claimed(queue)
                if where == "delayed":
                    assert await queue.retry(claim, HOUR)
        await until_ms(broker, deadline_ms + 120)

        async def is_found() -> bool:
            match found_by:
                case "sweep":
                    return await queue.sweep() >= 1
                case "claim":
                    assert await queue.claim(1, owner="o") == []
                case "peek":
                    assert await queue.peek(1) == []
                case "state":
                    return (await queue.state("a"))[0] is State.DONE
            return True

        async def is_answered() -> bool:
            await queue.sweep()
            return (await queue.totals()).expired == 1

        await eventually(is_found)
        await eventually(is_answered)
        [leased] = await queue.lease_results(9)
        assert leased.result.error_code is ErrorCode.DEADLINE_EXCEEDED
        assert leased.result.status_code == 0
        assert {"submitted": 1, "expired": 1}.items() <= (await counts(queue)).items()
        assert "pending" not in await counts(queue)


@with_more_time(500)
async def test_06_hundreds_of_expired_ones_hold_up_nobody(broker: Broker, ms: int) -> None:
    async with broker.queue(f"q{ms}", QueueRules()) as queue:
        deadline = await broker.now_ms() + ms
        async with by(deadline, broker.now_ms):
            await asyncio.gather(
                *(submitted(broker, queue, f"r{n}", deadline_ms=deadline) for n in range(350))
            )
        await submitted(broker, queue, "good", within_ms=HOUR)
        await until_ms(broker, deadline + 1)
        ids = []
        for _ in range(5):
            assert all(head.id == "good" for head in await queue.peek(64))
            ids += [claim.request.id for claim in await queue.claim(64, owner="o")]
        assert ids == ["good"]
        await queue.sweep()
        assert await counts(queue) == {"submitted": 351, "expired": 350, "pending": 1, "claimed": 1}
