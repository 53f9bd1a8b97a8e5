"""A worker made for misbehaving, and a discovery over a store that the test writes itself."""

from collections.abc import AsyncIterator

import pytest

from discovery import MetadataClient, SourceDiscovery
from discovery.memory import MemorySource, MemoryStore
from discovery.metadata.silence import SilenceTimings
from tests.fake_worker import FakeWorker, serving


@pytest.fixture
async def worker() -> AsyncIterator[FakeWorker]:
    async with serving(FakeWorker()) as fake:
        yield fake


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def discovering(store: MemoryStore) -> AsyncIterator[SourceDiscovery]:
    """Its workers have a minute for each answer, and polls are quick."""
    client = MetadataClient(timeout=60.0, silence=SilenceTimings(wait=1.0, margin=60.0))
    async with SourceDiscovery(MemorySource(store), client=client, sync_timeout=60.0) as service:
        yield service


@pytest.fixture
async def impatient(store: MemoryStore) -> AsyncIterator[SourceDiscovery]:
    """The same, but it gives an answer up after a second, and a held one after three."""
    client = MetadataClient(timeout=1.0, silence=SilenceTimings(wait=1.0))
    async with SourceDiscovery(MemorySource(store), client=client, sync_timeout=60.0) as service:
        yield service
