"""Fetches from slow workers delay no other fetch."""

import asyncio
import socket
import time

from discovery import Instance, MetadataClient, SourceDiscovery
from discovery.memory import MemorySource, MemoryStore
from discovery.metadata.client import FetchLimiter
from tests.fake_worker import FakeWorker, serving


async def test_hundreds_of_hanging_workers_delay_no_other(store: MemoryStore) -> None:
    """Each has 30 seconds to answer, and 128 fetches begin at once."""
    async with serving(FakeWorker("0.0.0.0")) as good:
        with socket.create_server(("0.0.0.0", 0), backlog=1024) as hung:  # the kernel accepts, nobody answers
            port = hung.getsockname()[1]
            for number in range(400):
                where = f"127.1.{number // 200}.{number % 200 + 1}"
                store.put(Instance(f"hung-{number:03}", "prod", "decode", where, port, "one"))
            for number in range(20):
                where = f"127.2.0.{number + 1}"
                store.put(Instance(f"good-{number:02}", "prod", "decode", where, good.port, "one"))
            service = SourceDiscovery(MemorySource(store), client=MetadataClient(timeout=30.0))
            async with service, service.watch("prod", "decode", metadata=True) as stream:
                async with asyncio.timeout(90):
                    while len(stream.instances) < 20:
                        await anext(stream)
                assert all(instance_id.startswith("good") for instance_id in stream.instances)


async def test_fast_fetches_wait_for_a_slot() -> None:
    limiter, most, now = FetchLimiter(4), 0, 0

    async def ask() -> None:
        nonlocal most, now
        async with limiter.slot():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    await asyncio.gather(*(ask() for _ in range(100)))
    assert (most, now) == (4, 0)


async def test_a_slow_fetch_gives_up_its_slot_exactly_once() -> None:
    limiter = FetchLimiter(1)
    order: list[str] = []
    answer = asyncio.Event()

    async def ask(name: str, *, slow: bool) -> None:
        async with limiter.slot():
            order.append(f"{name} begins")
            if slow:
                await answer.wait()
            order.append(f"{name} ends")

    slow = asyncio.create_task(ask("slow", slow=True))
    await asyncio.sleep(0)
    async with asyncio.timeout(90):
        await ask("quick", slow=False)
        answer.set()
        await slow
    assert order == ["slow begins", "quick begins", "quick ends", "slow ends"]
    await one_at_a_time(limiter)


async def test_a_cancelled_waiter_takes_no_slot() -> None:
    await one_at_a_time(FetchLimiter(1))


async def one_at_a_time(limiter: FetchLimiter) -> None:
    begun = time.monotonic()
    async with limiter.slot():
        second = limiter.slot()
        waiting = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        if waiting.done() and time.monotonic() - begun > 0.2:  # so long that the first one counts as slow
            await second.__aexit__(None, None, None)
            return await one_at_a_time(limiter)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(90), limiter.slot(retry=True):
        return None
