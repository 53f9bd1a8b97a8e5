"""`wait_for_instances`: its timeouts and its errors."""

import asyncio

import pytest

from discovery import DiscoveryTimeoutError, Report, SourceDiscovery, wait_for_instances
from discovery.memory import MemorySource, MemoryStore
from discovery.source import ComponentKey
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
