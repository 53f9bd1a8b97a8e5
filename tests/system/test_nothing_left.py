"""Opening and closing each stream and server a hundred times leaks no task, socket, thread or file descriptor."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import discovery
import discovery.blocking
import registry
import registry.blocking
from epp.server import PickerServer
from tests.epp.local_picker import local
from tests.eventually import eventually

POOL = 8
"""Threads that a pool may keep for the next one; whatever leaks once in a cycle leaks a hundred times."""

Cycle = Callable[[str], Awaitable[None]]


async def a_watch(url: str) -> None:
    async with discovery.open(url) as service, service.watch("prod", "decode", metadata=True) as stream:
        await anext(stream)


async def a_list(url: str) -> None:
    async with discovery.open(url) as service:
        [instance] = await service.list_instances("prod", "decode")
        await instance.metadata()


async def a_worker(url: str) -> None:
    async with registry.open(url).register_instance("prod", "other") as handle:
        handle.set_metadata({"model": {"name": "m"}})
        handle.set_ready("ready")


async def a_worker_and_its_watcher(url: str) -> None:
    async with discovery.open(url) as service, service.watch("prod", "other", metadata=True) as stream:
        await a_worker(url)
        async with asyncio.timeout(90):
            while stream.instances:
                await asyncio.sleep(0.001)


async def blocking_forms(url: str) -> None:
    def live() -> None:
        with discovery.blocking.open(url) as service, service.watch("prod", "decode") as stream:
            next(stream)
        with registry.blocking.open(url) as workers:
            workers.register_instance("prod", "other").set_ready("ready")

    await asyncio.to_thread(live)


async def a_picker(url: str) -> None:
    async with PickerServer(local(discovery=url, namespace="prod", component="decode")):
        pass


def held() -> dict[str, int]:
    """Returns what this process has open now, including idle threads of a pool."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


@pytest.mark.parametrize(
    "cycle",
    [a_watch, a_list, a_worker, a_worker_and_its_watcher, blocking_forms, a_picker],
    ids=lambda c: c.__name__,
)
async def test_a_hundred_cycles_leave_nothing(cycle: Cycle, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    async with registry.open(url).register_instance("prod", "decode") as worker:
        worker.set_ready("ready")
        for _ in range(5):  # what is made once and kept: pools, imports, caches
            await cycle(url)
        before = held()
        for _ in range(100):
            await cycle(url)
        await eventually(lambda: not any(now > before[what] + POOL for what, now in held().items()))
