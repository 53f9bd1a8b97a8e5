"""The brokers: one in memory, one on a real Redis server."""

from collections.abc import AsyncIterator, Iterator

import pytest

from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.broker.queue import Broker
from dispatcher.broker.redis.broker import RedisBroker
from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests of this process; whoever stops or pauses one starts a server of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty database."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture(params=["memory", "redis"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """Both brokers, entered; one by one."""
    if request.param == "memory":
        async with MemoryBroker() as memory:
            yield memory
    else:
        url: str = request.getfixturevalue("redis_url")
        async with RedisBroker(url) as redis:
            yield redis
