"""Closing a discovery while calls run, and calls after it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from discovery import (
    MetadataClient,
    MetadataUnavailableError,
    Report,
    SourceDiscovery,
    wait_for_instances,
)
from discovery.memory import MemorySource, MemoryStore
from discovery.source import ComponentKey
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, hang


class Silent(MemorySource):
    """A source that never syncs."""

    async def run(self, key: ComponentKey, report: Report) -> None:
        await asyncio.Event().wait()


CALLS: dict[str, Callable[[SourceDiscovery], Awaitable[object]]] = {
    "enter": lambda service: service.watch("n", "c").__aenter__(),
    "enter with metadata": lambda service: service.watch("n", "c", metadata=True).__aenter__(),
    "next": lambda service: service.watch("n", "c").__anext__(),
    "list": lambda service: service.list_instances("n", "c"),
    "explain": lambda service: service.explain("n", "c"),
    "wait": lambda service: wait_for_instances(service, "n", "c", count=1),
}


@pytest.mark.parametrize("call", CALLS)
async def test_calls_that_wait_for_the_first_snapshot_fail_at_once_and_leave_no_task(call: str) -> None:
    service = SourceDiscovery(Silent(MemoryStore()))
    before = asyncio.all_tasks()

    async def asked() -> None:
        await CALLS[call](service)

    asking = asyncio.create_task(asked())
    await asyncio.sleep(0.02)
    async with asyncio.timeout(90):
        await service.aclose()
        with pytest.raises(RuntimeError, match="this discovery is closed"):
            await asking
    assert asyncio.all_tasks() == before


async def test_closing_ends_a_running_explain(store: MemoryStore, worker: FakeWorker) -> None:
    service = SourceDiscovery(MemorySource(store))
    worker.handler = hang
    store.put(worker.instance())
    explaining = asyncio.create_task(service.explain("prod", "decode"))
    await eventually(lambda: worker.requests)
    async with asyncio.timeout(90):
        await service.aclose()
        with pytest.raises(RuntimeError, match="this discovery is closed"):
            await explaining


@pytest.mark.parametrize("was_used", [True, False])
async def test_metadata_after_close_is_unavailable_and_opens_no_connection(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker, was_used: bool
) -> None:
    store.put(worker.instance())
    [instance] = await discovering.list_instances("prod", "decode")
    async with discovering.watch("prod", "decode", metadata=True) as stream:
        followed = (await anext(stream)).instance
    if was_used:
        await instance.metadata()
    asked = len(worker.requests)
    await discovering.aclose()
    for told in (instance, followed):
        with pytest.raises(MetadataUnavailableError, match="this discovery is closed"):
            await told.metadata()
    assert len(worker.requests) == asked


async def test_a_client_that_was_never_used_closes_for_good(worker: FakeWorker) -> None:
    client = MetadataClient()
    await client.aclose()
    with pytest.raises(MetadataUnavailableError, match="this discovery is closed"):
        await client.fetch(worker.instance())
