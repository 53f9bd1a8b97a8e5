"""A dispatcher killed at any point: every accepted request still gets exactly one terminal result."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from aiohttp import web

from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.config.config_file import Config
from tests.dispatcher.dispatching import Producer, configured, document, producer
from tests.dispatcher.processes import Running, dispatcher
from tests.dispatcher.target import Asked, Target, ok
from tests.eventually import eventually

MANY = 1000
WITHIN = 90.0
"""Seconds from a kill to the last result: a lease, a sweep, and the work itself."""
QUEUE = {"name": "batch", "lease": "9s"}
"""A dispatcher that gets no processor for three seconds keeps its claims."""


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisBroker]:
    async with RedisBroker(redis_url) as broker:
        yield broker


@pytest.fixture
def config(target: Target) -> Config:
    return configured(target.url, QUEUE)


@pytest.fixture
def file(target: Target, redis_url: str, tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(document(target.url, QUEUE, broker=redis_url, concurrency=32))
    return path


async def submitted(queue: Producer) -> list[str]:
    ids = [f"r{number}" for number in range(MANY)]
    for start in range(0, MANY, 100):
        await asyncio.gather(*(queue.submit(id, seconds=300) for id in ids[start : start + 100]))
    return ids


async def all_answered_once(queue: Producer, ids: list[str], within: float = WITHIN) -> float:
    """Every id has one result in the store, and none has two; the seconds until then."""
    begun = time.monotonic()
    while (totals := await queue.queue.totals()).pending:
        assert time.monotonic() - begun < within, totals
        await asyncio.sleep(0.1)
    took = time.monotonic() - begun
    found: Counter[str] = Counter()
    while leased := await queue.queue.lease_results(500):
        found.update(one.result.id for one in leased)
        assert {one.result.status_code for one in leased} == {200}
    assert found == Counter(ids)
    assert totals.succeeded == totals.submitted == len(ids)
    assert totals.claimed == totals.delayed == 0
    return took


def faulty(file: Path, point: str, count: int) -> AbstractAsyncContextManager[Running]:
    """A dispatcher that kills itself when it reaches `point` for the `count`th time."""
    return dispatcher(file, "--point", point, "--count", str(count), module="tests.dispatcher.faulty")


async def fed_until_it_dies(queue: Producer, ids: list[str], running: Running) -> None:
    """However late it is, another dispatcher has not done everything before."""
    while running.process.returncode is None:
        if (await queue.queue.totals()).pending > 300:
            await asyncio.sleep(0.02)
            continue
        more = [f"r{number}" for number in range(len(ids), len(ids) + 100)]
        await asyncio.gather(*(queue.submit(id, seconds=300) for id in more))
        ids += more
    await died(running)


async def died(running: Running) -> None:
    assert await running.ended() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("point", "count"), [("claimed", 40), ("sent", 200), ("answered", 150), ("settled", 333)]
)
async def test_01_killed_at(
    point: str, count: int, target: Target, broker: RedisBroker, config: Config, file: Path
) -> None:
    async with producer(broker, config) as queue:
        ids = await submitted(queue)
        async with faulty(file, point, count) as first:
            await died(first)
        async with dispatcher(file):
            await all_answered_once(queue, ids)
    assert len(target.asked) <= MANY + 32, "only what was on its way was asked for again"


async def test_01_killed_in_the_middle_of_its_requests(
    target: Target, broker: RedisBroker, config: Config, file: Path
) -> None:
    held = asyncio.Event()

    async def answer(asked: Asked) -> web.StreamResponse:
        if len(target.asked) > 200 and not held.is_set():
            await held.wait()
        return await ok(asked)

    target.answer = answer
    async with producer(broker, config) as queue:
        ids = await submitted(queue)
        async with dispatcher(file) as first:
            await eventually(lambda: target.now == 32)
            first.send(signal.SIGKILL)
            await died(first)
        held.set()
        async with dispatcher(file):
            await all_answered_once(queue, ids)


@pytest.mark.parametrize(("point", "count"), [("parked", 50), ("move", 2)])
async def test_01_killed_while_requests_wait_for_another_attempt(
    point: str, count: int, target: Target, broker: RedisBroker, config: Config, file: Path
) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        if asked.headers["x-dispatch-attempt"] == "1" and int(asked.headers["x-request-id"][1:]) % 10 == 0:
            return web.Response(status=500)
        return await ok(asked)

    target.answer = answer
    async with producer(broker, config) as queue:
        ids = await submitted(queue)
        async with faulty(file, point, count) as first:
            await died(first)
        async with dispatcher(file):
            await all_answered_once(queue, ids)


async def test_01_killed_while_it_takes_over_from_another(
    target: Target, broker: RedisBroker, config: Config, file: Path
) -> None:
    async with producer(broker, config) as queue:
        ids = await submitted(queue)
        for point, count in (("answered", 100), ("sweep", 5)):
            async with faulty(file, point, count) as running:
                await died(running)
        async with dispatcher(file):
            await all_answered_once(queue, ids)


async def test_01_killed_again_and_again_beside_another(
    target: Target, broker: RedisBroker, config: Config, file: Path
) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return await ok(asked)

    target.answer = answer
    async with producer(broker, config) as queue:
        ids = await submitted(queue)
        async with dispatcher(file):
            for point in ("claimed", "sent", "answered"):
                async with faulty(file, point, 60) as running:
                    await fed_until_it_dies(queue, ids, running)
            await all_answered_once(queue, ids)


async def test_01_with_the_lease_as_shipped(
    target: Target, broker: RedisBroker, redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(document(target.url, broker=redis_url))
    async with producer(broker, configured(target.url)) as queue:
        ids = await submitted(queue)
        async with faulty(file, "answered", 200) as first:
            await died(first)
        async with dispatcher(file):
            await all_answered_once(queue, ids)


async def test_02_stopped_for_longer_than_its_lease(
    target: Target, broker: RedisBroker, config: Config, file: Path
) -> None:
    held = asyncio.Event()

    async def answer(asked: Asked) -> web.StreamResponse:
        if asked.headers["x-dispatch-attempt"] == "1":
            await held.wait()
        return await ok(asked)

    target.answer = answer
    async with producer(broker, config) as queue, dispatcher(file) as first:
        requests = await queue.submit_all([f"r{number}" for number in range(20)], seconds=300)
        await eventually(lambda: target.now == 20)
        first.send(signal.SIGSTOP)
        async with dispatcher(file):
            results = await queue.results(requests, WITHIN)
        assert {result.attempts for result in results} == {2}
        held.set()
        first.send(signal.SIGCONT)
        first.send(signal.SIGTERM)
        assert await first.ended() == 0
        await all_answered_once(queue, [request.id for request in requests])
    assert len(target.asked) == 40
