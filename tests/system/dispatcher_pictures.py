"""`python -m tests.system.dispatcher_pictures [FOLDER]`: the pictures of the dispatcher's page in docs, of a real run.

It needs Chromium, as `python -m tests.system` installs it, and takes a minute.
"""

import asyncio
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser

from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.opening import open_broker
from tests.dispatcher.processes import dispatcher
from tests.dispatcher.queued import HOUR
from tests.dispatcher.target import Asked, Target
from tests.redis_server import RedisServer
from tests.system.browser import chromium, take_pictures

LOAD_FOR = 45.0
"""Seconds of results that the picture shows."""


def _configuration(place: Path, target: str, broker: str, metrics: str) -> Path:
    def gate(metric: str) -> dict[str, Any]:
        given = {"url": metrics, "metric": metric, "pods": 1, "interval": "1s", "allow_unreachable": True}
        return {"type": "endpoint-scrape", "params": {**given, "max_concurrency": 24, "baseline": "0.1"}}

    queues = [
        {"name": "chat-batch", "gate": gate("saturation"), "weights": {"mobile": 2.0}},
        {"name": "nightly", "gate": gate("night_saturation"), "weights": {"research": 3.0}},
        {
            "name": "embeddings",
            "gate": {"type": "redis-quota", "params": {"limit": 1, "mode": "concurrency"}},
        },
    ]
    given = {
        "broker": broker,
        "http": {"port": 0},
        "targets": [{"name": "pool", "url": target, "concurrency": 48}],
        "queues": [{"target": "pool", **queue} for queue in queues],
        "front_door": {"queue": "chat-batch"},
    }
    path = place / "dispatcher.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


async def _submit(broker: str) -> None:
    """Enough for the whole time; cancelled in the end."""
    async with open_broker(broker) as opened, AsyncExitStack() as stack:
        names = ("chat-batch", "nightly", "embeddings")
        queues = {n: await stack.enter_async_context(opened.queue(n, QueueRules())) for n in names}
        now, numbers = await opened.now_ms(), iter(range(10**9))

        async def add(queue: str, tenants: list[str], hours: float) -> None:
            id, deadline = f"r{next(numbers)}", now + round(hours * HOUR)
            await queues[queue].submit(Request(id, b"{}", deadline, random.choice(tenants)))

        for _ in range(640):
            await add("nightly", ["research", "research", "evaluation", "vision"], 8 + random.random())
        while True:
            await add("chat-batch", ["web", "mobile"], 1)
            if random.random() < 0.3:
                await add("embeddings", ["search", "ads"], 0.5)
            await asyncio.sleep(random.expovariate(30))


async def take(browser: Browser, folder: Path, place: Path) -> None:
    """One queue that sends, one whose gate is closed, and one whose tenants have used up their quota."""

    async def answer(asked: Asked) -> web.StreamResponse:
        await asyncio.sleep(random.lognormvariate(-1.2, 0.5))
        return web.json_response({}, status=400 if random.random() < 0.02 else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="saturation 0.31\nnight_saturation 0.97\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as pool, Target(answer) as target:
        with RedisServer(place) as redis:
            config = _configuration(place, target.url, redis.url, str(pool.make_url("/metrics")))
            async with dispatcher(config) as running:
                submitting = asyncio.create_task(_submit(redis.url))
                await asyncio.sleep(LOAD_FOR)
                await take_pictures(browser, running.http, "dispatcher-page", folder)
                submitting.cancel()
                await asyncio.wait([submitting])


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        async with chromium() as browser:
            await take(browser, folder, Path(place))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
