"""The brokers: one in memory, one on a real Redis server, or the one in `--broker-url`."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatcher.broker.contract.queue import Broker
from dispatcher.broker.opening import open_broker
from tests.dispatcher.target import target  # noqa: F401  # a fixture, as the next two
from tests.redis_server import redis_server, redis_url  # noqa: F401


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs over the built-in brokers, or over the one in `--broker-url`."""
    if "broker_name" in metafunc.fixturenames:
        built_in = ["redis"] if "shared_url" in metafunc.fixturenames else ["memory", "redis"]
        metafunc.parametrize(
            "broker_name", ["given"] if metafunc.config.getoption("--broker-url") else built_in
        )


@pytest.fixture
def broker_url(broker_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty broker."""
    if broker_name == "redis":
        return str(request.getfixturevalue("redis_url"))
    given = "memory://" if broker_name == "memory" else str(request.config.getoption("--broker-url"))
    return given.replace("UNIQUE", uuid.uuid4().hex).replace("TMP", str(tmp_path))


@pytest.fixture
def shared_url(broker_url: str) -> str:
    """For tests with several processes: never of a broker in memory."""
    return broker_url


@pytest.fixture
async def broker(broker_url: str) -> AsyncIterator[Broker]:
    """Each of them, entered; one by one."""
    async with open_broker(broker_url) as opened:
        yield opened
