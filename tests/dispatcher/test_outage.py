"""Redis away for longer than a lease, with answers on their way."""

import asyncio

import pytest
from aiohttp import web

from dispatcher.redis.broker import RedisBroker
from tests.dispatcher.dispatching import configured, dispatching, producer
from tests.dispatcher.target import Asked, Target, ok
from tests.redis_server import RedisServer


async def test_05_answers_that_came_in_an_outage_are_published_not_asked_for_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async def slow(asked: Asked) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return await ok(asked)

    with RedisServer(tmp_path_factory.mktemp("away"), durable=True) as server:
        async with Target(answer=slow) as target, RedisBroker(server.url) as broker:
            config = configured(target.url, {"name": "batch", "lease": "1s"})
            async with producer(broker, config) as queue, dispatching(broker, config):
                requests = await queue.submit_all([f"r{n}" for n in range(20)])
                while len(target.asked) < 20:
                    await asyncio.sleep(0.01)
                server.stop()
                await asyncio.sleep(3)  # well past the lease; the answers are in
                server.start()
                results = await queue.results(requests)
                assert {result.status_code for result in results} == {200}
                assert len(target.asked) == 20
