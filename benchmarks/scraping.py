"""Measures the cost of scraping 100 idle workers: every 50 ms, at the picker's adaptive interval, and with aiohttp.

The pages come from `benchmarks.metrics_pages`, in its own process on another core; the processor time is that of
this process only, all its threads. aiohttp is there for comparison: the same scrapes through a general HTTP client.
"""

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.metrics_pages import page
from benchmarks.process_usage import percentile, processor_seconds
from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.scraping.engines import ENGINES
from epp.scraping.metrics_page import read_load
from epp.scraping.schedule import ScrapeIntervals
from epp.scraping.scraper import Scraper, ScrapeSettings

_WORKERS = 100
_INTERVAL = 0.05
_SETTLE = 1.5
_SECONDS = 5.0
_ROUNDS = 3


async def main() -> None:
    print(f"{_WORKERS} workers, a page of {len(page(1000)) / 1e3:.0f} KB each, nothing runs on them")
    async with _pages() as ports:
        costs_by_method: dict[str, list[_Cost]] = {
            "every 50 ms": [],
            "adaptive": [],
            "aiohttp, every 50 ms": [],
        }
        for _ in range(_ROUNDS):
            costs_by_method["every 50 ms"].append(await _scrape(ports, ScrapeIntervals.fixed(_INTERVAL)))
            costs_by_method["adaptive"].append(await _scrape(ports, ScrapeIntervals()))
            costs_by_method["aiohttp, every 50 ms"].append(await _by_aiohttp(ports))
    for method, costs in costs_by_method.items():
        print(f"{method}: " + "; ".join(map(str, costs)))


@contextlib.asynccontextmanager
async def _pages() -> AsyncIterator[list[int]]:
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.metrics_pages", str(_WORKERS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[0]})
        os.sched_setaffinity(server.pid, {cores[1]})
    try:
        yield [int(port) for port in (await server.stdout.readline()).split()]
    finally:
        os.sched_setaffinity(0, cores)
        server.kill()
        await server.wait()


@dataclass(frozen=True, slots=True)
class _Cost:
    cores: float
    scrapes: float
    age: float = 0.0

    def __str__(self) -> str:
        oldest = f", oldest {self.age * 1e3:.0f} ms" if self.age else ""
        each = self.cores / self.scrapes * 1e6
        return f"{self.cores:.3f} cores, {self.scrapes:.0f} looks/s, {each:.0f} µs each{oldest}"


class _CountingDatastore(Datastore):
    scrapes = 0

    def observe(self, *arguments: Any) -> None:
        self.scrapes += 1
        super().observe(*arguments)


async def _scrape(ports: list[int], intervals: ScrapeIntervals) -> _Cost:
    store = _CountingDatastore()
    for number, port in enumerate(ports):
        instance = Instance(f"w-{number}", "bench", "decode", "127.0.0.1", port, "1")
        store.apply(InstanceAddedEvent(instance), {})
    ages: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.1)
            ages.append(float(store.pool(time.monotonic()).age.max()))

    async with _running(Scraper(store, ScrapeSettings(intervals=intervals), random.Random(1)).run()):
        await asyncio.sleep(_SETTLE)
        async with _running(watch()):
            before, spent = store.scrapes, processor_seconds()
            started = time.monotonic()
            await asyncio.sleep(_SECONDS)
            took = time.monotonic() - started
            spent = processor_seconds() - spent
    return _Cost(spent / took, (store.scrapes - before) / took, percentile(ages, 1.0))


async def _by_aiohttp(ports: list[int]) -> _Cost:
    scrapes = 0
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=1.0)

    async def poll(port: int) -> None:
        nonlocal scrapes
        await asyncio.sleep(random.random() * _INTERVAL)
        while True:
            started = time.monotonic()
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                read_load(await answer.read(), ENGINES[0])
            scrapes += 1
            await asyncio.sleep(max(0.0, _INTERVAL - (time.monotonic() - started)))

    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        contextlib.AsyncExitStack() as stack,
    ):
        for port in ports:
            await stack.enter_async_context(_running(poll(port)))
        await asyncio.sleep(_SETTLE)
        before, spent, started = scrapes, processor_seconds(), time.monotonic()
        await asyncio.sleep(_SECONDS)
        took = time.monotonic() - started
        return _Cost((processor_seconds() - spent) / took, (scrapes - before) / took)


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
