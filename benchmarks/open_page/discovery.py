"""The page of `adsum discovery serve`, in this process, while a rolling update replaces workers."""

import asyncio
import itertools
from collections import deque
from dataclasses import replace
from typing import Final, Never

from adsum.serving.pages import served_at
from adsum.serving.sockets import raise_descriptor_limit
from adsum.tasks import background
from adsum.web.access import Access
from benchmarks.open_page.browsers import page_cost
from benchmarks.open_page.metadata_answers import addresses
from benchmarks.open_page.program import program
from discovery import Instance, InstanceStatus
from discovery.memory import MemorySource, MemoryStore
from discovery.service import SourceDiscovery
from discovery.source import ComponentKey
from discovery.web.component_follower import ComponentFollower
from discovery.web.pages import GUARDED, ComponentPages

_UPDATE: Final = 400.0
"""Seconds that the update takes: a quarter of the workers at a time, each ready after 100 s. But one a second, at least."""
_STEP: Final = 2.0
"""Seconds between two steps of one worker."""


class _Workers:
    """Each at a loopback address of its own. Replaced, the old one drains and leaves, the new one is not ready at first."""

    def __init__(self, port: int, count: int) -> None:
        self.store = MemoryStore()
        self._port = port
        # the new one of a pair never has an address that an old one still uses
        self._addresses = addresses(places(count))
        self._numbers = itertools.count()
        self._ready = deque(self._new(InstanceStatus.READY) for _ in range(count))

    def _new(self, status: InstanceStatus) -> Instance:
        number = next(self._numbers)
        address = self._addresses[number % len(self._addresses)]
        name = f"decode-7d9c5b8f6d-{number:05}"
        made = Instance(name, "prod", "decode", address, self._port, f"life-{number}", status)
        self.store.put(made)
        return made

    async def update(self, rate: float) -> Never:
        async with asyncio.TaskGroup() as steps:
            while True:
                await asyncio.sleep(1 / rate)
                steps.create_task(self._replace())

    async def _replace(self) -> None:
        old, new = self._ready.popleft(), self._new(InstanceStatus.NOT_READY)
        await asyncio.sleep(_STEP)
        new = replace(new, status=InstanceStatus.READY)
        self._ready.append(new)
        self.store.put(new)
        self.store.put(replace(old, status=InstanceStatus.DRAINING))
        await asyncio.sleep(_STEP)
        self.store.remove(old)


def places(count: int) -> int:
    """Addresses for so many workers and those that replace them."""
    return 2 * count


async def main() -> None:
    raise_descriptor_limit()
    for count in (4, 100, 1000):
        await measure(count)


async def measure(count: int) -> None:
    rate = max(1.0, count / _UPDATE)
    async with program("benchmarks.open_page.metadata_answers", str(places(count))) as answers:
        workers = _Workers(answers.port, count)
        async with SourceDiscovery(MemorySource(workers.store)) as service:
            follower = ComponentFollower(service, ComponentKey("prod", "decode"), "memory://benchmark")
            app = ComponentPages(follower).application(Access(GUARDED, None))
            async with (
                background(follower.run()),
                served_at("127.0.0.1", 0, app, "the page", "--listen") as authority,
                background(workers.update(rate)),
            ):
                await asyncio.sleep(5.0)  # until each GET is held
                cost = await page_cost(int(authority.rpartition(":")[2]))
    print(f"discovery, {count} workers, {rate:.1f} replaced a second: {cost}", flush=True)
