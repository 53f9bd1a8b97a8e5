"""`wait_for_instances`, its timeouts and errors; closing a discovery while calls run, and calls after it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from discovery import (
    DiscoveryTimeoutError,
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


class Deaf(MemorySource):
    """A source that never reports a snapshot."""

    async def run(self, key: ComponentKey, report: Report) -> None:
        report.degraded("connection refused")
        await asyncio.Event().wait()


async def test_it_ends_at_its_timeout_and_sends_no_further_request(
    store: MemoryStore, discovering: SourceDiscovery, worker: FakeWorker
) -> None:
    worker.handler = hang
    store.put(worker.instance())
    async with asyncio.timeout(45):  # sooner than the answer would be given up
        with pytest.raises(DiscoveryTimeoutError, match=r"0 of 1 instances(.|\n)*has not answered yet"):
            await wait_for_instances(discovering, "prod", "decode", count=1, timeout=0.3)
    assert len(worker.requests) <= 1


async def test_a_source_out_of_reach_is_named_within_the_timeout(store: MemoryStore) -> None:
    async with SourceDiscovery(Deaf(store), sync_timeout=3600.0) as service, asyncio.timeout(90):
        with pytest.raises(DiscoveryTimeoutError, match="not sync within 0.2 s: connection refused"):
            await wait_for_instances(service, "prod", "decode", count=1, timeout=0.2)


async def test_its_timeout_may_be_longer_than_the_discovery_s(store: MemoryStore, worker: FakeWorker) -> None:
    class Late(MemorySource):
        async def run(self, key: ComponentKey, report: Report) -> None:
            await asyncio.sleep(0.3)
            await super().run(key, report)

    store.put(worker.instance())
    async with SourceDiscovery(Late(store), sync_timeout=0.05) as service:
        assert len(await wait_for_instances(service, "prod", "decode", count=1, timeout=90)) == 1


@pytest.mark.parametrize(
    "numbers", [{"count": -1}, {"timeout": -1}, {"stable_for": -0.5}, {"timeout": float("nan")}]
)
async def test_a_number_below_zero_is_an_error(
    discovering: SourceDiscovery, numbers: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(numbers))} is .*; expected zero or more"):
        await wait_for_instances(discovering, "prod", "decode", **({"count": 1} | numbers))  # type: ignore[arg-type]  # one of them is wrong


async def test_a_count_of_zero_returns_at_once(discovering: SourceDiscovery) -> None:
    assert await wait_for_instances(discovering, "prod", "decode", count=0, timeout=60) == []


async def test_closing_the_discovery_ends_the_wait_with_an_error(
    store: MemoryStore, discovering: SourceDiscovery
) -> None:
    waiting = asyncio.create_task(wait_for_instances(discovering, "prod", "decode", count=1, timeout=3600))
    await asyncio.sleep(0.05)
    await discovering.aclose()
    async with asyncio.timeout(90):
        with pytest.raises(RuntimeError, match="discovery was closed"):
            await waiting


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
