"""A Redis without memory left takes nothing in, and everything that is in it can still be finished."""

from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from dispatcher.broker.contract.ledger import Grant, Quota, QuotaMode, Reading, Reservation
from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueError, QueueRules, State
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.broker.redis.go_queues.intake import GoSource
from tests.dispatcher.broker.redis.go_queues.test_intake import message
from tests.dispatcher.dispatching import configured, document, producer
from tests.dispatcher.processes import dispatcher
from tests.dispatcher.queued import answer, claimed, counts, submitted
from tests.dispatcher.target import Target
from tests.dispatcher.web.test_front_door import ENQUEUE, door
from tests.eventually import asked_until, eventually
from tests.redis_server import RedisServer


class Full:
    """A broker whose memory can be taken away and given back."""

    def __init__(self, broker: RedisBroker, client: Redis, url: str) -> None:
        self.broker = broker
        self.client: Any = client
        self.url = url

    async def fill(self) -> None:
        """From now on commands that need memory are refused."""
        await self.client.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            await self.client.set("another", "key")

    async def free(self) -> None:
        await self.client.config_set("maxmemory", 0)


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Full]:
    with RedisServer(tmp_path) as server:
        async with RedisBroker(server.url) as broker, Redis.from_url(server.url) as client:
            yield Full(broker, client, server.url)


async def test_a_dispatcher_starts_and_drains(full: Full, tmp_path: Path) -> None:
    async with Target() as target:
        quota = {"type": "redis-quota", "params": {"limit": 8, "mode": "concurrency"}}
        batch = {"name": "batch", "gate": quota}
        config = tmp_path / "config.yaml"
        config.write_text(document(target.url, batch, broker=full.url))
        async with producer(full.broker, configured(target.url, batch, broker=full.url)) as one:
            requests = await one.submit_all([f"r{number}" for number in range(50)], seconds=600)
            await full.fill()
            async with dispatcher(config):
                results = await one.results(requests)
        assert [result.status_code for result in results] == [200] * 50


async def test_a_queue_goes_on(full: Full) -> None:
    async with full.broker.queue("q", QueueRules(lease_ms=1000)) as queue:
        requests = [await submitted(full.broker, queue, id=f"r{number}") for number in range(6)]
        await full.fill()
        assert len(await queue.peek(9)) == 6
        claims = await queue.claim(4, owner="one")
        assert list(await queue.extend(claims)) == [True] * 4
        assert await queue.retry(claims[0], 0)
        assert await queue.retry(claims[1], 60_000)
        assert await queue.release([claims[2]]) == 1
        assert await queue.finish(claims[3], answer(claims[3]))
        assert await queue.cancel("r5") is State.PENDING
        assert await counts(queue) == {
            "submitted": 6, "succeeded": 1, "cancelled": 1, "pending": 4, "delayed": 1, "retries": 2
        }  # fmt: skip
        await queue.wait(0.01)
        await queue.sweep()
        left = await queue.claim(9, owner="two")
        assert len(left) == 3
        again: set[str] = set()

        async def are_given_again() -> bool:
            await queue.sweep()
            again.update(claim.request.id for claim in await queue.claim(9, owner="three"))
            return len(again) >= 3

        await eventually(are_given_again)
        assert again == {claim.request.id for claim in left}, "what lapsed is given to another"
        leased = await queue.lease_results(9)
        assert {one.result.id for one in leased} == {requests[3].id, requests[5].id}
        assert await queue.ack_results(leased) == 2


async def test_a_ledger_goes_on(full: Full) -> None:
    await full.fill()
    async with full.broker.ledger("pool") as ledger:
        look = await ledger.state()
        reservation = await ledger.reserve(Reading(Fraction(1), look.now_ms, Fraction(1)), 1)
        assert isinstance(reservation, Reservation)
        await ledger.heartbeat([reservation])
        assert (await ledger.state()).in_flight == 1
        await ledger.report_overload(10)
        await ledger.release(reservation, accepted=True)
        assert (await ledger.state()).in_flight == 0


@pytest.mark.parametrize("mode", QuotaMode)
async def test_quotas_go_on(full: Full, mode: QuotaMode) -> None:
    await full.fill()
    async with full.broker.quotas() as quotas:
        grant = await quotas.acquire("quota:a", Quota(1, mode))
        assert isinstance(grant, Grant)
        await quotas.heartbeat([grant])
        await quotas.release(grant, used=True)


async def test_what_go_producers_had_put_in_is_taken_over(full: Full) -> None:
    await full.client.zadd("request-sortedset", {message("a", 9_999_999_999): 1, b"no message": 2})
    await full.fill()
    async with (
        full.broker.queue("q", QueueRules()) as queue,
        full.broker.go_intake("q", QueueRules(), GoSource()),
    ):
        await asked_until(queue.totals, lambda found: found.pending == 1)
        claim = await claimed(queue)
        assert await queue.finish(claim, answer(claim))
        await eventually(lambda: queue.dead_letters(1))


async def test_nothing_new_is_taken_in_and_nothing_of_it_stays(full: Full) -> None:
    async with full.broker.queue("q", QueueRules()) as queue:
        await submitted(full.broker, queue, id="before")
        keys = {key async for key in full.client.scan_iter()}
        await full.fill()
        later = Request("later", b"{}", await full.broker.now_ms() + 60_000)
        with pytest.raises(QueueError, match="nothing was changed: .*maxmemory"):
            await queue.submit(later, idempotency_key="k")
        assert {key async for key in full.client.scan_iter()} == keys
        await full.free()
        await queue.submit(later, idempotency_key="k")
        assert (await queue.totals()).pending == 2


async def test_the_front_door_is_not_ready_and_names_no_broker(
    full: Full, caplog: pytest.LogCaptureFixture
) -> None:
    async with Target() as target, door(target, full.url) as way_in:

        async def is_ready(status: int, said: str) -> bool:
            async with way_in.client.get("/readyz") as answer:
                return answer.status == status and said in await answer.text()

        await eventually(lambda: is_ready(200, "ready"))
        await full.fill()
        status, said, _ = await way_in.post(ENQUEUE)
        assert status == 503
        assert said["error"]["message"] == "the queue is away, or takes nothing in now; try again"
        await eventually(lambda: is_ready(503, "the broker takes nothing in: it refuses to write: "))
        await full.free()
        await eventually(lambda: is_ready(200, "ready"))
        assert (await way_in.post(ENQUEUE))[0] == 202
    lines = [record.getMessage() for record in caplog.records if "the broker" in record.getMessage()]
    assert [line.partition(":")[0] for line in lines] == [
        "the broker takes nothing in",
        "the broker is well again",
    ]
