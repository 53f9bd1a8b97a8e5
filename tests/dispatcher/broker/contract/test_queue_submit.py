"""What a queue accepts, what it takes for the same request, and that a body stays what it was."""

import asyncio
import os

import pytest

from dispatcher.broker.contract.message import ErrorCode, Request
from dispatcher.broker.contract.queue import (
    Broker,
    ConflictError,
    Queue,
    QueueFullError,
    QueueLimits,
    QueueRules,
    State,
)
from tests.dispatcher.queued import HOUR, answer, claimed, counts, submitted, until_ms
from tests.in_time import by, with_more_time


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"id": ""}, "needs an id of 1 to 512 bytes"),
        ({"id": "x" * 513}, "needs an id"),
        ({"tenant": ""}, "needs a tenant"),
        ({"tenant": "a\0b"}, "none of them a control character"),
        ({"deadline_ms": 2**60}, "is no time in milliseconds"),
        ({"token": ""}, "needs a token of 1 to 1024 bytes"),
        ({"token": "\ud800"}, "surrogates not allowed"),
        ({"token": "x" * 1025}, "needs a token"),
        ({"payload": b"12345"}, "has 5 bytes, the queue takes 4"),
        ({"deadline_ms": 5}, "passed [0-9]+ ms ago; deadline_ms is Unix time in milliseconds"),
        ({"deadline_ms": -5}, "passed [0-9]+ ms ago"),
    ],
)
async def test_what_cannot_be_accepted_is_refused_at_the_door(
    broker: Broker, wrong: dict[str, object], said: str
) -> None:
    values: dict[str, object] = {"id": "a", "payload": b"{}", "deadline_ms": await broker.now_ms() + HOUR}
    async with broker.queue("q", QueueRules(max_payload=4)) as queue:
        with pytest.raises(ValueError, match=said):
            await queue.submit(Request(**{**values, **wrong}))  # type: ignore[arg-type]
        assert await counts(queue) == {}


@pytest.mark.parametrize("name", ["", "a b", "{a}", "-a", "x" * 201])
async def test_a_name_that_would_break_the_keys_is_refused(broker: Broker, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a queue"):
        async with broker.queue(name, QueueRules()):
            pass


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (QueueRules(lease_ms=0), "lease_ms of queue 'q' is 0, expected 1 or more"),
        (QueueRules(max_deliveries=0), "max_deliveries"),
        (QueueRules(weights={"a": 0.0}), "weight of tenant 'a' in queue 'q' is 0.0, expected more than 0"),
        (QueueRules(weights={"a": float("nan")}), "weight"),
    ],
)
async def test_rules_that_cannot_be_kept_are_refused(broker: Broker, rules: QueueRules, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        async with broker.queue("q", rules):
            pass


async def test_everything_of_a_request_comes_back_with_its_claim(broker: Broker) -> None:
    async with broker.queue("q", QueueRules(strict_tiers=True)) as queue:
        request = await submitted(
            broker,
            queue,
            "ä/1",
            payload=b'{"n": 1.10}',
            tenant="té nant",
            path="/v1/x",
            headers={"X-A": "1"},
            metadata={"userid": "u"},
            objective="o",
            tier=3,
        )
        assert request.created_ms > 0
        claim = await claimed(queue)
        assert claim.request == request
        assert (claim.delivery, claim.attempt) == (1, 0)


@pytest.mark.parametrize("size", [0, 65_536, 65_537, 10 * 1024 * 1024])
async def test_26_a_body_of_any_size_comes_back_byte_for_byte(broker: Broker, size: int) -> None:
    body = os.urandom(size)
    async with broker.queue("q", QueueRules()) as queue:
        await submitted(broker, queue, "big", payload=body)
        [head] = await queue.peek(5)
        assert head.size == size
        claim = await claimed(queue)
        assert claim.request.payload == body
        assert await queue.finish(claim, answer(claim, body))
        result = await queue.wait_result("big", timeout=60)
        assert result is not None
        assert result.payload == body


async def test_22_the_same_key_and_body_is_one_request_and_another_body_a_conflict(
    broker: Broker, queue: Queue
) -> None:
    first = await submitted(broker, queue, "a", payload=b"body", idempotency_key="k")
    again = await submitted(broker, queue, "b", payload=b"body", idempotency_key="k")
    assert (again.id, again.token, again.deadline_ms) == (first.id, first.token, first.deadline_ms)
    with pytest.raises(ConflictError, match="used for another request"):
        await submitted(broker, queue, "c", payload=b"other", idempotency_key="k")
    with pytest.raises(ConflictError):
        await submitted(broker, queue, "d", payload=b"body", path="/other", idempotency_key="k")
    assert (await counts(queue))["submitted"] == 1
    claim = await claimed(queue)
    await queue.finish(claim, answer(claim))
    after = await submitted(broker, queue, "e", payload=b"body", idempotency_key="k")
    assert after.token == first.token
    await queue.ack_results(await queue.lease_results(9))
    assert (await submitted(broker, queue, "f", payload=b"body", idempotency_key="k")).token == first.token
    assert await counts(queue) == {"submitted": 1, "succeeded": 1}


async def test_22_a_key_is_its_tenants_own(broker: Broker, queue: Queue) -> None:
    ours = await submitted(broker, queue, "a", tenant="us", idempotency_key="k")
    theirs = await submitted(broker, queue, "a", tenant="them", idempotency_key="k")
    assert ours.token != theirs.token


@with_more_time(300)
async def test_22_a_key_is_free_again_when_its_result_is_kept_no_longer(broker: Broker, ms: int) -> None:
    async with broker.queue(f"q{ms}", QueueRules(result_ttl_ms=ms)) as queue:
        deadline_ms = await broker.now_ms() + ms
        async with by(deadline_ms, broker.now_ms):
            first = await submitted(broker, queue, "a", deadline_ms=deadline_ms, idempotency_key="k")
            claim = await claimed(queue)
            await queue.finish(claim, answer(claim))
            with pytest.raises(ConflictError):
                await submitted(broker, queue, "b", payload=b"other", idempotency_key="k")
        await until_ms(broker, deadline_ms + ms)
        await queue.sweep()
        again = await submitted(broker, queue, "b", payload=b"other", idempotency_key="k")
        assert again.token != first.token


async def test_22_many_at_once_with_one_key_are_one(broker: Broker, queue: Queue) -> None:
    several = [submitted(broker, queue, f"r{n}", idempotency_key="k") for n in range(20)]
    assert len({request.token for request in await asyncio.gather(*several)}) == 1
    assert await counts(queue) == {"submitted": 1, "pending": 1}


async def test_a_submission_whose_answer_was_lost_may_be_repeated(broker: Broker, queue: Queue) -> None:
    first = await submitted(broker, queue, "a")
    assert await queue.submit(first) == first
    claim = await claimed(queue)
    await queue.finish(claim, answer(claim))
    assert await queue.submit(first) == first
    assert await counts(queue) == {"submitted": 1, "succeeded": 1}


async def test_24_two_submissions_of_one_id_have_two_results_told_apart_by_token(
    broker: Broker, queue: Queue
) -> None:
    one = await submitted(broker, queue, "same")
    two = await submitted(broker, queue, "same")
    for claim in await queue.claim(2, owner="o"):
        await queue.finish(claim, answer(claim, claim.request.token.encode()))
    for request in (one, two):
        result = await queue.wait_result("same", request.token, timeout=60)
        assert result is not None
        assert (result.token, result.payload) == (request.token, request.token.encode())
    _, newest = await queue.state("same")
    assert newest is not None
    assert newest.token == two.token
    assert len(await queue.lease_results(9)) == 2


async def test_24_an_id_used_again_and_again_keeps_nothing_of_what_is_gone(
    broker: Broker, queue: Queue
) -> None:
    for _ in range(40):
        await submitted(broker, queue, "same")
        claim = await claimed(queue)
        await queue.finish(claim, answer(claim))
        assert await queue.ack_results(await queue.lease_results(1)) == 1
    assert await queue.state("same") == (State.UNKNOWN, None)


async def test_07_what_is_no_request_is_kept_with_its_reason_and_answered_if_it_has_an_id(
    queue: Queue,
) -> None:
    await queue.reject(b"\xff{", "not JSON", code=ErrorCode.INVALID_REQUEST)
    await queue.reject(b"x" * 100_000, "no deadline", id="r 1", code=ErrorCode.INVALID_REQUEST)
    newest, oldest = await queue.dead_letters(10)
    assert (oldest.reason, oldest.raw, oldest.id) == ("not JSON", b"\xff{", None)
    assert (newest.reason, newest.raw, newest.id) == ("no deadline", b"x" * 65_536, "r 1")
    [leased] = await queue.lease_results(10)
    assert (leased.result.id, leased.result.error_code) == ("r 1", ErrorCode.INVALID_REQUEST)
    assert leased.result.payload == b'{"error":"no deadline"}'
    assert await counts(queue) == {"submitted": 1, "failed": 1, "dead_letters": 2}


async def test_dead_letters_are_bounded(queue: Queue) -> None:
    rejecting = (queue.reject(b"x", f"{n}", code=ErrorCode.INVALID_REQUEST) for n in range(1_010))
    for one in rejecting:
        await one
    assert len(await queue.dead_letters(5_000)) == 1_000
    assert (await counts(queue))["dead_letters"] == 1_010


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (QueueLimits(requests=3), r"it takes 3 requests \(max_requests\)"),
        (QueueLimits(bytes=39), r"it takes 39 bytes of requests \(max_bytes\)"),
        (QueueLimits(tenant_requests=2), r"it takes 2 requests of tenant 'a' \(max_tenant_requests\)"),
        (QueueLimits(tenant_bytes=29), r"it takes 29 bytes of requests of tenant 'a' \(max_tenant_bytes\)"),
    ],
)
async def test_what_passes_a_limit_is_refused_until_something_has_its_result(
    broker: Broker, limits: QueueLimits, said: str
) -> None:
    async with broker.queue("q", QueueRules(limits=limits)) as queue:
        for tenant in ("a", "a", "b"):
            await submitted(broker, queue, "r", tenant=tenant, payload=b"x" * 10)
        once = {"payload": b"x" * 10, "tenant": "a", "token": "once", "idempotency_key": "k"}
        for _ in range(2):
            with pytest.raises(QueueFullError, match=said):
                await submitted(broker, queue, "r", **once)
        claim = await claimed(queue)
        with pytest.raises(QueueFullError):  # claimed or delayed counts too
            await submitted(broker, queue, "r", **once)
        assert await queue.retry(claim, HOUR)
        with pytest.raises(QueueFullError):
            await submitted(broker, queue, "r", **once)
        assert await queue.cancel(claim.request.id, claim.request.token) is State.DELAYED
        for _ in range(2):  # said again: the same request, which passes no limit
            await submitted(broker, queue, "r", **once)
        with pytest.raises(QueueFullError):
            await submitted(broker, queue, "r", tenant="a", payload=b"x" * 10)
        totals = await counts(queue)
        assert (totals["submitted"], totals["pending"]) == (4, 3)


async def test_many_at_once_pass_no_limit(broker: Broker) -> None:
    rules = QueueRules(limits=QueueLimits(requests=20, tenant_requests=7))
    async with broker.queue("q", rules) as first, broker.queue("q", rules) as second:
        for _ in range(2):
            tries = [
                submitted(broker, queue, "r", tenant=f"t{number % 4}")
                for number in range(40)
                for queue in (first, second)
            ]
            said = await asyncio.gather(*tries, return_exceptions=True)
            assert sum(isinstance(one, Request) for one in said) == 20
            assert sum(isinstance(one, QueueFullError) for one in said) == 60
            for claim in await first.claim(50, owner="o"):
                assert await first.finish(claim, answer(claim))
