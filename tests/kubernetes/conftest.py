"""Clusters for the tests of the Kubernetes source: most live in virtual time, without sockets."""

from collections.abc import AsyncIterator

import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.over_http import Serve, servers
from tests.kubernetes.fake.virtual_time import VIRTUAL, Backend
from tests.kubernetes.fake.world import World


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest, anyio_backend: Backend) -> Backend:
    """A file whose tests need no sockets says `IN_VIRTUAL_TIME = True`."""
    return VIRTUAL if getattr(request.module, "IN_VIRTUAL_TIME", False) else anyio_backend


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with servers() as start:
        yield start


@pytest.fixture
def world() -> World:
    """dynamo/decode with its Service and no pods."""
    return World()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A fake over HTTP, where slices may hold loopback addresses so that workers can answer."""
    async with FakeApiServer(FakeApi(allow_loopback=True)) as running:
        yield running


@pytest.fixture
def cluster(server: FakeApiServer) -> World:
    """Pods a and b, behind HTTP."""
    world = World(server.api)
    world.pods("a", "b")
    return world


@pytest.fixture
def bare() -> World:
    """No Service and no controller: the slices are made by hand."""
    world = World()
    world.delete_service()
    world.sync()
    return world


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    for name in ("a", "b", "c"):
        made.put("endpointslices", endpoint_slice(name, endpoint(f"10.244.0.{ord(name)}", name)))
    return made
