"""What the dispatcher's page shows in a real browser while gates close, tenants wait and the broker goes away."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from playwright.async_api import Browser, Page, expect

from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.opening import open_broker
from tests.dispatcher.dispatching import document
from tests.dispatcher.processes import dispatcher
from tests.dispatcher.queued import HOUR
from tests.dispatcher.target import Asked, Target
from tests.http_server import http_server
from tests.redis_server import RedisServer
from tests.system.browser import PHONE, overflow, page_of, wider_tables

SECRET = "the prompt of somebody"


class Load:
    """A metrics page whose one number the test sets; None: it answers 500."""

    def __init__(self) -> None:
        self.value: float | None = 0.0

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(status=500) if self.value is None else web.Response(text=f"load {self.value}\n")


@pytest.fixture
async def load() -> AsyncIterator[tuple[Load, str]]:
    made = Load()
    async with http_server({"/metrics": made.page}) as port:
        yield made, f"http://127.0.0.1:{port}/metrics"


def configuration(path: Path, target: str, broker: str, metrics: str) -> Path:
    given = {"metric": "load", "pods": 1, "max_concurrency": 4, "interval": "100ms", "stale_after": 100}
    gate = {"type": "endpoint-scrape", "params": {**given, "url": metrics, "allow_unreachable": True}}
    quota = {"type": "redis-quota", "params": {"limit": 1, "mode": "concurrency"}}
    queues: list[dict[str, Any]] = [{"name": "batch", "gate": gate}, {"name": "shared", "gate": quota}]
    (path / "dispatcher.yaml").write_text(document(target, *queues, broker=broker))
    return path / "dispatcher.yaml"


async def submit(broker: str, queue: str, tenant: str, count: int) -> None:
    async with open_broker(broker) as opened, opened.queue(queue, QueueRules()) as submitting:
        deadline = await opened.now_ms() + HOUR
        payload = json.dumps({"prompt": SECRET}).encode()
        for n in range(count):
            await submitting.submit(Request(f"{tenant}-{n}", payload, deadline, tenant))


def row(table: str, name: str) -> str:
    return f"#{table} tbody tr:has(th:has-text('{name}'))"


async def shows(page: Page, selector: str, text: str) -> None:
    await expect(page.locator(selector).first).to_contain_text(text)


async def test_gates_tenants_results_and_an_outage(
    browser: Browser, target: Target, load: tuple[Load, str], tmp_path: Path
) -> None:
    pool, metrics = load
    released = asyncio.Event()

    async def slow(asked: Asked) -> web.StreamResponse:
        await released.wait()
        return web.json_response({"answer": SECRET}, status=400 if b"bad" in asked.body else 200)

    target.answer = slow
    with RedisServer(tmp_path) as redis:
        config = configuration(tmp_path, target.url, redis.url, metrics)
        async with dispatcher(config) as running, page_of(browser, running.http) as page:
            await shows(page, "#identity", "2 queues to pool")
            await shows(page, row("queues", "batch"), "Idle")
            await shows(page, row("gates", "batch"), "Read")

            pool.value = 1.0
            await submit(redis.url, "batch", "nightly", 5)
            await shows(page, row("queues", "batch"), "Waits")
            await shows(page, row("queues", "batch"), "is 0")
            await shows(page, row("queues", "batch"), "closed since")
            await shows(page, row("tenants", "nightly"), "batch")
            pool.value = None
            await shows(page, row("gates", "batch"), "Not read")
            await shows(page, row("gates", "batch"), "500")

            await submit(redis.url, "shared", "<b>greedy</b>", 3)
            await shows(page, row("tenants", "<b>greedy</b>"), "is used up")
            await shows(page, row("queues", "shared"), "Sends")
            assert await page.locator("#tenants b").count() == 0, "text, whatever it is"

            released.set()
            pool.value = 0.0
            await shows(page, row("results", "batch") + " td[data-label='Succeeded']", "5")
            await shows(page, row("results", "shared") + " td[data-label='Succeeded']", "3")
            await shows(page, "#succeeded", "8")
            await shows(page, row("queues", "batch"), "Idle")
            await expect(page.locator("#no-tenants")).to_be_visible()
            await expect(page.locator("#tenants")).to_be_hidden()

            redis.pause()
            await shows(page, row("queues", "batch"), "Broker away")
            await shows(page, "#problem", "the broker does not answer")
            await expect(page.locator("#problem")).not_to_have_text(re.compile(r":\s*$"))
            await shows(page, "#no-tenants", "Not known")
            redis.resume()
            await shows(page, row("queues", "batch"), "Idle")
            await expect(page.locator("#problem")).to_be_hidden()
            assert SECRET not in await page.content()


async def test_a_phone_needs_no_sideways_scrolling(
    browser: Browser, target: Target, load: tuple[Load, str], tmp_path: Path, redis_url: str
) -> None:
    pool, metrics = load
    pool.value = None
    config = configuration(tmp_path, target.url, redis_url, metrics)
    async with dispatcher(config) as running, page_of(browser, running.http, size=PHONE, dark=True) as page:
        await submit(redis_url, "batch", "t" * 60, 2)
        await shows(page, row("queues", "batch"), "cannot be read")
        await shows(page, row("tenants", "t" * 60), "batch")
        assert await overflow(page) == 0


async def test_long_names_leave_room_for_the_rest(
    browser: Browser, target: Target, load: tuple[Load, str], tmp_path: Path, redis_url: str
) -> None:
    pool, metrics = load
    pool.value = None
    name = "-".join(["batch"] * 10)
    config = configuration(tmp_path, target.url, redis_url, metrics)
    config.write_text(config.read_text().replace("batch", name))
    async with dispatcher(config) as running, page_of(browser, running.http) as page:
        await submit(redis_url, name, "t" * 60, 2)
        await shows(page, row("queues", name), "cannot be read")
        await shows(page, row("tenants", "t" * 60), name)
        assert await wider_tables(page) == []
