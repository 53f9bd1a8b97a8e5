"""A worker that has a metrics page and nothing else, and a scraper of it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import web

from discovery import Instance, InstanceAddedEvent
from epp.endpoints.datastore import Datastore
from epp.scraping.schedule import ScrapeIntervals
from epp.scraping.scraper import Scraper, ScrapeSettings
from tests.http_server import http_server

RULES = ScrapeSettings(
    intervals=ScrapeIntervals(interval=0.01, idle_interval=0.01, backoff=0.05), timeout=60.0, limit=4096
)
"""No page that comes is too late, however busy the machine is."""
IMPATIENT = replace(RULES, timeout=0.2)
"""For pages that do not come."""
SLOW_WHEN_IDLE = ScrapeSettings(
    intervals=ScrapeIntervals(interval=0.01, idle_interval=3600.0, linger=0.2), timeout=60.0
)
IDLE = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n"


class Worker:
    """A metrics page that says and does what it is told."""

    def __init__(self) -> None:
        self.page = (
            b"vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
        )
        self.status = 200
        self.headers: dict[str, str] = {}
        self.hang = False
        self.delay = 0.0
        self.stopped: asyncio.Event | None = None
        self.asked = self.held = 0
        self.connections: set[object] = set()
        self.paths: list[str] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.paths.append(request.path_qs)
        self.connections.add(request.transport)
        if self.stopped is not None:
            self.held += 1
            await self.stopped.wait()
        await asyncio.sleep(60 if self.hang else self.delay)
        return web.Response(body=self.page, status=self.status, headers=self.headers)


@asynccontextmanager
async def serving(*workers: Worker) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for worker in workers:
            pages = http_server({"/{path:.*}": worker.answer}, port=worker.port)
            worker.port = await stack.enter_async_context(pages)
        yield


@asynccontextmanager
async def scraping(store: Datastore, rules: ScrapeSettings = RULES, **options: Any) -> AsyncIterator[Scraper]:
    scraper = Scraper(store, rules, random.Random(1), **options)
    task = asyncio.create_task(scraper.run())
    try:
        yield scraper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


def add(store: Datastore, worker: Worker, name: str = "w1", document: dict[str, Any] | None = None) -> None:
    instance = Instance(name, "ns", "c", "127.0.0.1", worker.port, "a")
    store.apply(InstanceAddedEvent(instance), document or {})


def waiting(store: Datastore) -> list[float]:
    return list(store.pool(0.0).waiting.tolist())


def age(store: Datastore) -> float:
    return float(store.pool(asyncio.get_running_loop().time()).age[0])
