"""Each alert of the dispatcher is quiet while a batch is sent, and fires by the fault that it is for."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from redis.asyncio import Redis

from dispatcher.broker.redis.broker import RedisBroker
from examples.dashboards.prometheus import Prometheus
from tests.dispatcher.dispatching import Producer, configured, document, producer
from tests.dispatcher.processes import Running, dispatcher, page, sample
from tests.dispatcher.target import Asked, Target, ok
from tests.eventually import eventually
from tests.redis_server import RedisServer
from tests.system.alert_rules import SCRAPE_SECONDS, Alarm, alerts_of, shortened

INTAKE = "go-requests"


async def unavailable(asked: Asked) -> web.StreamResponse:
    return web.Response(status=503)


async def never(asked: Asked) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def in_flight(running: Running) -> float:
    """What it has claimed of the busy queue."""
    _, metrics = await page(f"{running.http}/metrics")
    return sample(metrics, "llm_d_async_async_inflight_requests", queue_id="busy")


class Load:
    """The page that the gates read: `value` of 1 is a full pool, None no page at all."""

    def __init__(self) -> None:
        self.value: int | None = 0

    async def page(self, asked: Asked) -> web.StreamResponse:
        if self.value is None:
            return web.Response(status=500)
        return web.Response(text=f"load {self.value}\n")

    async def become(self, value: int | None) -> None:
        self.value = value


class Batch:
    """Two dispatchers over one Redis, which send to `target` what the page allows."""

    def __init__(self, root: Path, redis: RedisServer) -> None:
        self.root = root
        self.redis = redis
        self.target = Target()
        self.load = Load()
        self.page = Target(self.load.page)
        self.config = root / "dispatcher.yaml"
        self.dispatchers: list[Running] = []

    def text(self) -> str:
        """The configuration: a queue that is busy, one that is not used yet, one of Go producers."""
        params = {"url": f"{self.page.url}/metrics", "metric": "load", "max_count_per_pod": 1, "pods": 1}
        gate = {"type": "endpoint-scrape", "params": params | {"interval": "200ms", "lag": "200ms"}}
        rules = {"gate": gate, "lease": "10s"}
        queues = [{"name": name, **rules} for name in ("busy", "unused")]
        go = {"name": "go", **rules, "intake": {"key": INTAKE}}
        return document(self.target.url, *queues, go, broker=self.redis.url)

    async def configure(self, text: str) -> None:
        self.config.write_text(text)
        for running in self.dispatchers:
            running.send(signal.SIGHUP)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Prometheus]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.target)
            await stack.enter_async_context(self.page)
            await self.configure(self.text())
            for _ in range(2):
                self.dispatchers.append(await stack.enter_async_context(dispatcher(self.config)))
            pages = {
                f"dispatcher-{number}": running.http.removeprefix("http://")
                for number, running in enumerate(self.dispatchers)
            }
            rules = shortened(self.root, "dispatcher")
            yield await stack.enter_async_context(Prometheus(self.root, pages, rules, every=SCRAPE_SECONDS))

    @asynccontextmanager
    async def producing(self, queue: str) -> AsyncIterator[Producer]:
        queues: tuple[dict[str, Any], ...] = ({"name": "busy"}, {"name": "unused"})
        config = configured(self.target.url, *queues, broker=self.redis.url)
        async with RedisBroker(self.redis.url) as broker, producer(broker, config, queue) as producing:
            yield producing

    async def submit(self, queue: str, name: str, *, count: int = 5, seconds: float = 60.0) -> None:
        async with self.producing(queue) as producing:
            for number in range(count):
                await producing.submit(f"{name}-{number}", seconds=seconds)

    async def fill_the_pool(self) -> None:
        """The gates are closed, and requests wait in a queue from which nothing was sent."""
        await self.load.become(1)
        await self.submit("unused", "waits", seconds=300.0)

    async def submit_too_late(self) -> None:
        await self.submit("unused", "late", seconds=8.0)

    async def stop_redis(self) -> None:
        self.redis.stop()

    async def fail_every_attempt(self) -> None:
        await self.load.become(0)
        self.target.answer = unavailable
        await self.submit("busy", "fails", count=20, seconds=300.0)

    async def kill_one_in_flight(self) -> None:
        """A dispatcher that waits for answers is killed, whichever of the two claimed the requests."""
        self.target.answer = never
        await self.submit("busy", "hangs", count=20)
        waiting: list[Running] = []

        async def one_waits() -> bool:
            waiting[:] = [running for running in self.dispatchers if await in_flight(running) >= 2]
            return bool(waiting) and self.target.now >= 2

        await eventually(one_waits)
        waiting[0].send(signal.SIGKILL)

    async def send_nonsense(self) -> None:
        """As a Go producer with a fault would."""
        async with Redis.from_url(self.redis.url) as client:
            await client.zadd(INTAKE, {"no request": 1})


async def test_each_alert_fires_by_its_fault(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        batch = Batch(tmp_path, redis)
        async with batch.running() as prometheus:
            alarm = Alarm(prometheus)
            await batch.submit("busy", "sound", count=20)
            await alarm.quiet()
            assert len(batch.target.asked) == 20
            await alarm.fires("AdsumDispatcherConfigRefused", by=lambda: batch.configure("queues: 1"))
            await batch.configure(batch.text())
            await alarm.fires("AdsumDeadLetters", by=batch.send_nonsense)
            await alarm.fires("AdsumGateBlind", by=lambda: batch.load.become(None))
            await alarm.fires("AdsumQueueStalled", by=batch.fill_the_pool)
            await alarm.fires("AdsumDeadlinesMissed", by=batch.submit_too_late)
            await alarm.fires("AdsumAttemptsFail", by=batch.fail_every_attempt)
            batch.target.answer = ok
            names = ("AdsumClaimsTakenOver", "AdsumDispatcherDown")
            await alarm.fires(*names, by=batch.kill_one_in_flight)
            await alarm.fires("AdsumBrokerAway", by=batch.stop_redis)
    assert alarm.fired == alerts_of("dispatcher")
