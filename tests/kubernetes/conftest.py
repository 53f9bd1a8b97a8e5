"""Clusters for the tests of the Kubernetes source: most live in virtual time, without sockets."""

from collections.abc import AsyncIterator

import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.world import World


@pytest.fixture
def world() -> World:
    """dynamo/decode with its Service and no pods."""
    return World()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A fake over HTTP, where slices may hold loopback addresses so that workers can answer."""
    async with FakeApiServer(FakeApi(allow_loopback=True)) as running:
        yield running
