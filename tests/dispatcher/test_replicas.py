"""Three dispatcher processes, four queues and a target with old metrics: they never overload it."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.gates.metering.readers import samples
from tests.dispatcher.dispatching import configured, document, producer
from tests.dispatcher.processes import Running, dispatcher
from tests.dispatcher.target import Asked, Target, ok, once
from tests.dispatcher.target_simulator import TargetSimulator
from tests.eventually import eventually

REPLICAS, QUEUES, EACH = 3, 4, 60
LATE = 5.0
CAPACITY = 50
MOST = CAPACITY * 0.9
SENT = "llm_d_async_async_dispatched_requests_total"


@asynccontextmanager
async def replicas(
    redis_url: str, file: Path, target: Target, gate: dict[str, Any]
) -> AsyncIterator[list[Running]]:
    """All of them ready, over queues q0 to q3 that have that gate."""
    queues = [{"name": f"q{n}", "gate": {"type": "endpoint-scrape", "params": gate}} for n in range(QUEUES)]
    file.write_text(document(target.url, *queues, broker=redis_url, concurrency=64))
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(dispatcher(file)) for _ in range(REPLICAS))
        yield [await running for running in starting]


async def fill(redis_url: str, target: Target, each: int, called: str = "") -> None:
    """So many requests in each queue; `called`: what tells them from those of another filling."""
    config = configured(target.url, *({"name": f"q{number}"} for number in range(QUEUES)))
    async with RedisBroker(redis_url) as broker:
        for number in range(QUEUES):
            async with producer(broker, config, f"q{number}") as queue:
                await queue.submit_all([f"q{number}-{called}{one}" for one in range(each)], seconds=600)


def queues_of(target: Target) -> set[str]:
    """Those that something was sent of."""
    return {id.partition("-")[0] for id in target.ids()}


async def sent(running: Running) -> int:
    """How many requests that replica has sent."""
    async with aiohttp.ClientSession() as client, client.get(f"{running.http}/metrics") as page:
        return int(sum(value for value, _ in samples(await page.read(), SENT, {})))


@pytest.mark.timeout(300)
async def test_09_replicas_that_read_what_was_5_s_ago_never_pass_the_baseline(
    redis_url: str, target: Target, tmp_path: Path
) -> None:
    """What interactive requests take falls now and then, and never rises."""
    simulator, rng = TargetSimulator(late=LATE), random.Random(9)
    simulator.others = 25

    async def answer(asked: Asked) -> web.StreamResponse:
        async with simulator.request():
            await asyncio.sleep(rng.uniform(0.1, 8.0))
        return await ok(asked)

    target.answer = answer
    await fill(redis_url, target, EACH)
    async with simulator.serving() as url:
        gate = {
            "url": f"{url}/metrics",
            "metric": "load",
            "max_count_per_pod": CAPACITY,
            "baseline": "0.1",
            "interval": "500ms",
            "lag": f"{LATE + 10}s",  # and the time from the reservation to the target, which is long on a busy machine
        }
        async with replicas(redis_url, tmp_path / "config.yaml", target, gate) as running:
            begun = time.monotonic()
            shares, fillings = [0], 1
            # on a busy machine a replica starts seconds after the others, and sends once it has read for a while
            while (took := time.monotonic() - begun) < 11 or (
                (simulator.highest <= 40 or len(queues_of(target)) < QUEUES or not all(shares)) and took < 150
            ):
                assert simulator.highest <= MOST
                simulator.others = max(0, 25 - 5 * int(took / 2.5))
                simulator.note()
                await asyncio.sleep(0.02)
                if took > 10:
                    shares = [await sent(one) for one in running]
                if len(target.asked) > (fillings - 0.5) * QUEUES * EACH:  # who comes late finds work, too
                    await fill(redis_url, target, EACH, f"{fillings}-")
                    fillings += 1
    assert simulator.highest > 40, "and it was used"
    assert all(shares), "by every replica"
    assert queues_of(target) == {"q0", "q1", "q2", "q3"}
    assert len(target.ids()) == len(set(target.ids()))


@pytest.mark.timeout(300)
async def test_11_what_all_replicas_send_on_one_reading_is_n_in_all(
    redis_url: str, target: Target, tmp_path: Path
) -> None:
    """Shut, twelve pumps with 64 places each wait; a reading opens it for 30 and three quarters, all at once."""
    simulator = TargetSimulator()
    simulator.page = "saturation 1\n"
    held = asyncio.Event()

    target.answer = once(held)
    await fill(redis_url, target, each=64)
    async with simulator.serving() as url:
        gate = {
            "url": f"{url}/metrics",
            "metric": "saturation",
            "max_concurrency": CAPACITY,
            "baseline": "0.1",
            "interval": "100ms",
            "lag": "1h",
        }
        async with replicas(redis_url, tmp_path / "config.yaml", target, gate):
            looks = simulator.looks
            await eventually(lambda: simulator.looks > looks + 9, within=90)
            assert not target.asked
            simulator.page = "saturation 0.285\n"  # 50 x (0.715 - 0.1) = 30.75
            await eventually(lambda: len(target.asked) >= 30, within=90)
            looks = simulator.looks
            await eventually(lambda: simulator.looks > looks + 30, within=90)
            assert len(target.asked) == 30
