"""What large bodies cost a Redis: they go in once and out once, and no look at the queue moves them."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.redis.broker import RedisBroker
from tests.dispatcher.queued import answer

BODY = b'{"prompt": "' + b"x" * (10 * 1024 * 1024 - 14) + b'"}'
LOOKS = 50


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[Redis]:
    """Somebody who asks the server itself."""
    async with Redis.from_url(redis_url) as client:
        yield client


async def moved(server: Redis) -> int:
    """Bytes that the server has read and written so far."""
    stats = await server.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


async def test_26_a_look_at_the_queue_moves_no_body(redis_url: str, server: Redis) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        deadline_ms = await broker.now_ms() + 600_000
        for number in range(3):
            await queue.submit(Request(f"r{number}", BODY, deadline_ms))
        before = await moved(server)
        for _ in range(LOOKS):
            [first] = await queue.peek(1)
            assert first.size == len(BODY)
            await queue.totals()
            await queue.sweep()
        assert await moved(server) - before < len(BODY) / 20
        [claim] = await queue.claim(1, owner="tester")
        assert claim.request.payload == BODY
        await queue.retry(claim, 0)
        [claim] = await queue.claim(1, owner="tester")
        await queue.extend([claim])
        await queue.finish(claim, answer(claim))
        assert await moved(server) - before < len(BODY) * 2.1, (
            "out with each of the two claims, never in again"
        )


async def test_26_only_the_keys_of_the_bodies_are_large(redis_url: str, server: Redis) -> None:
    async with RedisBroker(redis_url) as broker, broker.queue("q", QueueRules()) as queue:
        deadline_ms = await broker.now_ms() + 600_000
        for number in range(3):
            await queue.submit(Request(f"r{number}", BODY, deadline_ms))
        sizes = sorted([int(await server.memory_usage(key, samples=0)) async for key in server.scan_iter()])
        assert len(sizes) > 3
        assert sizes[-4] < 100_000 < len(BODY) <= sizes[-3]
