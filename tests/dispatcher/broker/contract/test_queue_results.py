"""Results: waited for by id, leased by consumers, kept for their time. And what was cancelled."""

import asyncio

import pytest

from dispatcher.broker.contract.message import ErrorCode, Result
from dispatcher.broker.contract.queue import Broker, Queue, QueueRules, State
from tests.dispatcher.queued import answer, claimed, counts, submitted, until_ms


async def finished(broker: Broker, queue: Queue, *ids: str) -> None:
    """Requests that have their result, in this order."""
    for id in ids:
        await submitted(broker, queue, id)
        claim = await claimed(queue)
        assert await queue.finish(claim, answer(claim, id.encode()))


@pytest.mark.parametrize(
    ("status", "code", "counter"),
    [
        (200, None, "succeeded"),
        (302, None, "succeeded"),
        (404, None, "failed"),
        (503, None, "failed"),
        (0, ErrorCode.INFERENCE_ERROR, "failed"),
        (0, ErrorCode.GATE_ERROR, "failed"),
        (0, ErrorCode.PAYLOAD_UNAVAILABLE, "failed"),
        (0, ErrorCode.INVALID_REQUEST, "failed"),
        (0, ErrorCode.GATE_DROPPED, "dropped"),
        (0, ErrorCode.CANCELLED, "cancelled"),
        (429, ErrorCode.DEADLINE_EXCEEDED, "expired"),
    ],
)
async def test_28_each_ending_is_counted_once(
    broker: Broker, queue: Queue, status: int, code: ErrorCode | None, counter: str
) -> None:
    request = await submitted(broker, queue, "a")
    claim = await claimed(queue)
    result = Result("a", request.token, status, b'\x00"b\xff', code, "why, Ü?", 3)
    assert await queue.finish(claim, result)
    assert await counts(queue) == {"submitted": 1, counter: 1}
    state, kept = await queue.state("a", request.token)
    assert state is State.DONE
    assert kept is not None
    assert (kept.status_code, kept.payload, kept.error_code) == (status, b'\x00"b\xff', code)
    assert (kept.error_message, kept.attempts, kept.token) == ("why, Ü?", 3, request.token)
    assert abs(kept.finished_ms - await broker.now_ms()) < 60_000


async def test_23_two_consumers_never_get_the_same_and_lose_nothing(broker: Broker) -> None:
    ids = [f"r{n}" for n in range(40)]
    async with broker.queue("q", QueueRules()) as one, broker.queue("q", QueueRules()) as two:
        await finished(broker, one, *ids)
        batches = await asyncio.gather(*(consumer.lease_results(7) for consumer in (one, two) * 3))
        leased = [result for batch in batches for result in batch]
        assert sorted(item.result.id for item in leased) == sorted(ids)
        assert await two.ack_results(leased[:15]) == 15
        assert await one.ack_results(leased) == 25
        assert await one.lease_results(9) == []


async def test_23_results_come_oldest_first(broker: Broker, queue: Queue) -> None:
    await finished(broker, queue, "a")
    await until_ms(broker, await broker.now_ms() + 2)
    await finished(broker, queue, "b")
    assert [leased.result.id for leased in await queue.lease_results(9)] == ["a", "b"]


async def test_23_a_result_whose_consumer_died_comes_back_at_its_place(broker: Broker, queue: Queue) -> None:
    await finished(broker, queue, "a")
    [lost] = await queue.lease_results(1, lease_ms=50)
    await until_ms(broker, await broker.now_ms() + 51)
    await finished(broker, queue, "b")
    again, other = await queue.lease_results(9)
    assert (again.result.id, other.result.id) == ("a", "b")
    assert again.fence != lost.fence
    assert await queue.ack_results([lost]) == 0
    assert await queue.ack_results([again, again]) == 1


async def test_23_a_result_is_waited_for_by_id(broker: Broker) -> None:
    async with broker.queue("q", QueueRules()) as queue, broker.queue("q", QueueRules()) as other:
        requests = [await submitted(broker, queue, f"r{n}") for n in range(20)]
        waiting = [asyncio.create_task(queue.wait_result(r.id, r.token, timeout=30)) for r in requests]
        newest = asyncio.create_task(queue.wait_result("r3", timeout=30))
        unborn = asyncio.create_task(queue.wait_result("later", timeout=30))
        for claim in await other.claim(20, owner="o"):
            await other.finish(claim, answer(claim, claim.request.id.encode()))
        await finished(broker, other, "later")
        async with asyncio.timeout(90):
            results = await asyncio.gather(*waiting, newest, unborn)
        assert [result and result.payload.decode() for result in results] == [
            *(request.id for request in requests),
            "r3",
            "later",
        ]
        assert len(await queue.lease_results(99)) == 21  # nothing was taken away


async def test_23_a_wait_for_a_result_ends_with_its_time(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    assert await queue.wait_result("a", timeout=0.05) is None
    assert await queue.wait_result("a", timeout=0) is None
    waiting = asyncio.create_task(queue.wait_result("a", timeout=30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_result_is_kept_for_its_time(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(result_ttl_ms=60)) as queue:
        await finished(broker, queue, "a", "b")
        await until_ms(broker, await broker.now_ms() + 70)
        await queue.sweep()
        assert await queue.state("a") == (State.UNKNOWN, None)
        assert await queue.lease_results(9) == []
        assert await counts(queue) == {"submitted": 2, "succeeded": 2}


async def test_21_what_is_queued_is_cancelled_at_once(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    await submitted(broker, queue, "b")
    assert await queue.cancel("a") is State.PENDING
    assert await queue.cancel("a") is State.DONE
    assert await queue.cancel("nobody") is State.UNKNOWN
    [claim] = await queue.claim(9, owner="o")
    assert claim.request.id == "b"
    assert await queue.retry(claim, 60_000)
    assert await queue.cancel("b") is State.DELAYED
    assert await counts(queue) == {"submitted": 2, "cancelled": 2, "retries": 1}
    for leased in await queue.lease_results(9):
        assert leased.result.error_code is ErrorCode.CANCELLED


async def test_21_who_holds_it_is_told_and_publishes_nothing(broker: Broker) -> None:
    async with broker.queue("q", QueueRules()) as holder, broker.queue("q", QueueRules()) as caller:
        for id in ("a", "b"):
            await submitted(broker, caller, id)
        claim, other = await holder.claim(2, owner="holder")
        if claim.request.id != "a":
            claim, other = other, claim
        waiting = asyncio.create_task(holder.cancelled(30))
        elsewhere = asyncio.create_task(caller.cancelled(0.2))
        assert await caller.cancel("a", claim.request.token) is State.CLAIMED
        async with asyncio.timeout(90):
            assert list(await waiting) == [claim.fence]
        assert list(await elsewhere) == []
        assert await holder.extend([claim, other]) == [False, True]
        assert not await holder.finish(claim, answer(claim))
        result = await caller.wait_result("a", timeout=60)
        assert result is not None
        assert result.error_code is ErrorCode.CANCELLED
        assert list(await holder.cancelled(0.0)) == []


async def test_21_a_cancellation_between_two_looks_is_not_missed(broker: Broker, queue: Queue) -> None:
    await submitted(broker, queue, "a")
    claim = await claimed(queue)
    await queue.cancel("a")
    async with asyncio.timeout(90):
        assert list(await queue.cancelled(30)) == [claim.fence]


async def test_21_an_older_cancellation_does_not_touch_an_id_used_again(broker: Broker, queue: Queue) -> None:
    old = await submitted(broker, queue, "a")
    await queue.cancel("a", old.token)
    new = await submitted(broker, queue, "a")
    assert await queue.cancel("a", old.token) is State.DONE
    assert await queue.cancel("a", "some other token") is State.UNKNOWN
    assert (await claimed(queue)).request.token == new.token


async def test_a_delivered_result_is_forgotten(broker: Broker, queue: Queue) -> None:
    """Held by a consumer or not; another request of that id is not touched, and `finish` may be repeated."""
    request = await submitted(broker, queue, "a")
    assert not await queue.forget("a", request.token), "it has no result"
    claim = await claimed(queue)
    assert await queue.finish(claim, answer(claim))
    assert not await queue.forget("a", "another token")
    assert not await queue.forget("b", request.token)
    await finished(broker, queue, "held", "kept")
    [first, held] = await queue.lease_results(2)
    assert await queue.forget("a", request.token)
    assert await queue.forget("held", held.result.token)
    assert not await queue.forget("a", request.token), "it is gone"
    assert await queue.ack_results([first, held]) == 0
    assert (await queue.state("a"), await queue.state("held")) == ((State.UNKNOWN, None),) * 2
    assert await queue.finish(claim, answer(claim)), "its answer may have been lost"
    assert [one.result.id for one in await queue.lease_results(9)] == ["kept"]
    assert (await queue.totals()).succeeded == 3
