"""An explanation of many workers: the page of `discovery serve` asks for one every few seconds."""

import time

from discovery import Instance, SourceDiscovery
from discovery.memory import MemorySource, MemoryStore
from tests.eventually import eventually

FEW, MANY = 100, 1600


async def cost(workers: int) -> float:
    """Seconds of processor time, the least of seven. Nobody listens at the workers' ports."""
    store = MemoryStore()
    for n in range(workers):
        store.put(Instance(f"w-{n}", "prod", "decode", f"127.1.{n // 250}.{n % 250 + 1}", 9, "a"))
    async with SourceDiscovery(MemorySource(store)) as service, service.truth("prod", "decode"):
        await eventually(lambda: len(service.missing("prod", "decode")) == workers)
        costs = []
        for _ in range(7):
            began = time.thread_time()
            explained = await service.explain("prod", "decode")
            costs.append(time.thread_time() - began)
            assert len(explained.candidates) == workers
    return min(costs)


async def test_it_costs_the_same_for_each_worker_however_many_there_are() -> None:
    few, many = await cost(FEW), await cost(MANY)
    assert many / MANY < 3 * few / FEW
