"""The dispatcher's page: half of the queues send, the others wait for their gates, all with tenants."""

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from adsum.serving.pages import served_at
from adsum.tasks import background
from benchmarks.open_page.browsers import page_cost
from benchmarks.open_page.program import program
from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import Queue, QueueRules
from dispatcher.broker.opening import open_broker
from examples.redis_process import redis_process

_PER_SECOND: Final = 20
"""Requests that are answered, over all queues."""
_WAITING: Final = 20
"""Requests of each tenant behind a closed gate."""


async def main() -> None:
    for queues, tenants in ((1, 100), (12, 20), (48, 20)):
        await measure(queues, tenants)


async def measure(queues: int, tenants: int) -> None:
    names = [f"queue-{number}" for number in range(queues)]
    closed = (queues + 1) // 2
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker, _ = await stack.enter_async_context(redis_process())
        pool = await stack.enter_async_context(_pool())
        config = folder / "dispatcher.yaml"
        config.write_text(json.dumps(_configuration(broker, pool, names, closed)))
        opened = await stack.enter_async_context(open_broker(broker))
        submitting = [await stack.enter_async_context(opened.queue(name, QueueRules())) for name in names]
        deadline = await opened.now_ms() + 3_600_000
        for queue in submitting[:closed]:
            await _fill(queue, tenants, deadline)
        running = await stack.enter_async_context(program("dispatcher", "--config", str(config)))
        if open_queues := submitting[closed:]:
            await stack.enter_async_context(background(_submit(open_queues, tenants, deadline)))
        await asyncio.sleep(5.0)
        cost = await page_cost(running.port, running.pid)
    print(
        f"dispatcher, {queues} queues, {closed} of them closed with {tenants} tenants each: {cost}",
        flush=True,
    )


@asynccontextmanager
async def _pool() -> AsyncIterator[str]:
    """A target that answers at once, and its metrics page: it is full."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="load 1.0\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_route("*", "/{path:.*}", answer)
    async with served_at("127.0.0.1", 0, app, "the pool", "--port") as authority:
        yield f"http://{authority}"


def _configuration(broker: str, pool: str, names: Sequence[str], closed: int) -> dict[str, Any]:
    """The first `closed` queues wait for a gate that reads a metric."""
    scraped = {"url": f"{pool}/metrics", "metric": "load", "pods": 1, "max_concurrency": 64}
    gates = [{"type": "endpoint-scrape", "params": scraped}] * closed
    gates += [{"type": "constant"}] * (len(names) - closed)
    queues = [{"name": name, "target": "pool", "gate": gate} for name, gate in zip(names, gates, strict=True)]
    targets = [{"name": "pool", "url": pool, "concurrency": 64}]
    return {"broker": broker, "http": {"port": 0}, "targets": targets, "queues": queues}


async def _fill(queue: Queue, tenants: int, deadline: int) -> None:
    for number in range(_WAITING * tenants):
        await queue.submit(Request(f"waiting-{number}", b"{}", deadline, f"tenant-{number % tenants}"))


async def _submit(queues: Sequence[Queue], tenants: int, deadline: int) -> None:
    """Requests that are answered at once."""
    for number in itertools.count():
        queue, tenant = queues[number % len(queues)], f"tenant-{number % tenants}"
        await queue.submit(Request(f"sent-{number}", b"{}", deadline, tenant))
        await asyncio.sleep(1 / _PER_SECOND)
