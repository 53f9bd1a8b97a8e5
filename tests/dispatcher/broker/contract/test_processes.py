"""What a broker keeps for several processes, and when one of them is killed. A broker in memory has one process only."""

import asyncio

from dispatcher.broker.contract.queue import QueueRules, State
from dispatcher.broker.opening import open_broker
from tests.dispatcher.owner import owner
from tests.dispatcher.queued import answer, claimed, counts, submitted
from tests.eventually import eventually


async def test_everything_is_there_when_it_is_opened_again(shared_url: str) -> None:
    async with open_broker(shared_url) as broker, broker.queue("q", QueueRules()) as queue:
        for id in ("waits", "ended"):
            await submitted(broker, queue, id, payload=b"body", idempotency_key=id)
        await queue.finish(claim := await claimed(queue), answer(claim))
    async with open_broker(shared_url) as broker, broker.queue("q", QueueRules()) as queue:
        assert await counts(queue) == {"submitted": 2, "succeeded": 1, "pending": 1}
        state, result = await queue.state(claim.request.id, claim.request.token)
        assert (state, result and result.payload) == (State.DONE, b"ok")
        known = await submitted(broker, queue, "other", payload=b"body", idempotency_key=claim.request.id)
        assert known.token == claim.request.token
        assert (await claimed(queue)).request.payload == b"body"


async def test_what_a_killed_process_held_goes_to_another_after_its_lease(shared_url: str) -> None:
    async with open_broker(shared_url) as broker, broker.queue("q", QueueRules(lease_ms=1000)) as queue:
        for n in range(3):
            await submitted(broker, queue, f"r{n}")
        with owner(shared_url, "claim", 3, lease_ms=1000) as process:
            assert (await counts(queue))["claimed"] == 3
            process.kill()
            process.wait()
            taken = set()

            async def all_are_taken() -> bool:
                taken.update(claim.request.id for claim in await queue.claim(3, owner="other"))
                return len(taken) == 3

            await eventually(all_are_taken)
        assert (await counts(queue))["redelivered"] == 3


async def test_a_process_that_was_too_slow_publishes_nothing(shared_url: str) -> None:
    async with open_broker(shared_url) as broker, broker.queue("q", QueueRules(lease_ms=1000)) as queue:
        await submitted(broker, queue, "a")
        with owner(shared_url, "claim", lease_ms=1000) as process:
            await eventually(lambda: queue.peek(1))
            assert await queue.finish(claim := await claimed(queue), answer(claim, b"ours"))
            said, _ = process.communicate("\n", timeout=60)
            assert said == "0\n"
        [leased] = await queue.lease_results(9)
        assert leased.result.payload == b"ours"


async def test_whoever_waits_is_woken_by_what_another_opening_does(shared_url: str) -> None:
    async with (
        open_broker(shared_url) as broker,
        open_broker(shared_url) as elsewhere,
        broker.queue("q", QueueRules()) as queue,
        elsewhere.queue("q", QueueRules()) as other,
    ):
        assert await queue.peek(1) == []
        waiting = asyncio.create_task(queue.wait(3600))
        result = asyncio.create_task(queue.wait_result("a", timeout=3600))
        async with asyncio.timeout(90):
            await submitted(elsewhere, other, "a")
            assert await waiting
            claim = await claimed(queue)
            cancelled = asyncio.create_task(queue.cancelled(60))
            await other.cancel("a")
            assert list(await cancelled) == [claim.fence]
            assert await result is not None
