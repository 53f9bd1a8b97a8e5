"""Outages of Redis and of the gateway with requests in flight: their results, and the log."""

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.contract.validation import LONGEST_LEASE_MS
from dispatcher.broker.redis.broker import RedisBroker
from dispatcher.config.config_file import read_config
from dispatcher.delivery.gateway import OutageLog
from dispatcher.server import DispatcherServer
from tests.dispatcher.dispatching import configured, dispatching, document, producer
from tests.dispatcher.target import Target, once
from tests.eventually import eventually
from tests.free_port import free_port
from tests.in_time import with_more_time, without_a_gap
from tests.redis_server import RedisServer


@with_more_time(2_000)
async def test_05_answers_that_came_in_an_outage_are_published_not_asked_for_again(
    tmp_path_factory: pytest.TempPathFactory, ms: int
) -> None:
    answer_now, lease_ms = asyncio.Event(), min(ms, LONGEST_LEASE_MS)
    with RedisServer(tmp_path_factory.mktemp("away"), durable=True) as server:
        async with Target(answer=once(answer_now)) as target, RedisBroker(server.url) as broker:
            config = configured(target.url, {"name": "batch", "lease": f"{lease_ms}ms"})
            async with producer(broker, config) as queue, dispatching(broker, config):
                async with without_a_gap(lease_ms / 2000, broker.now_ms):
                    requests = await queue.submit_all([f"r{n}" for n in range(20)], seconds=600)
                    await eventually(lambda: len(target.asked) >= 20)
                server.stop()
                answer_now.set()
                await asyncio.sleep(2 * lease_ms / 1000 + 1)  # well past the lease; the answers are in
                server.start()
                async with asyncio.timeout(90):
                    while True:  # a connection from before the outage may be broken: asking again is safe
                        with contextlib.suppress(QueueError):
                            results = await queue.results(requests)
                            break
                        await asyncio.sleep(0.1)
                assert {result.status_code for result in results} == {200}
                assert len(target.asked) == 20


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = (record for record in caplog.records if record.name.startswith("dispatcher"))
    return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]


async def test_an_outage_of_the_broker_is_two_lines_however_many_answers_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer_now = asyncio.Event()
    with RedisServer(tmp_path, durable=True) as server:
        async with Target(answer=once(answer_now)) as target:
            config = read_config(document(target.url, broker=server.url), {})
            async with DispatcherServer(config):
                async with RedisBroker(server.url) as broker, producer(broker, config) as queue:
                    requests = await queue.submit_all([f"r{n}" for n in range(20)], seconds=600)
                    await eventually(lambda: len(target.asked) == 20, within=90)
                server.stop()
                answer_now.set()
                await eventually(lambda: warned(caplog), within=90)
                server.start()
                async with RedisBroker(server.url) as broker, producer(broker, config) as queue:
                    await queue.results(requests)
                await eventually(lambda: "the broker answers again" in warned(caplog), within=90)
    first, *rest = warned(caplog)
    assert first.startswith("the broker does not answer")
    assert rest == ["the broker answers again"]


async def test_an_outage_of_a_gateway_is_two_lines_however_many_requests_find_nobody(
    caplog: pytest.LogCaptureFixture, redis_url: str
) -> None:
    target = Target(port=free_port())
    async with RedisBroker(redis_url) as broker:
        config = configured(target.url)
        async with producer(broker, config) as queue, dispatching(broker, config):
            requests = await queue.submit_all([f"r{n}" for n in range(20)], seconds=600)
            await eventually(lambda: warned(caplog), within=90)
            async with target:
                await queue.results(requests, within=300)
                await eventually(lambda: len(warned(caplog)) > 1)
    away, back = warned(caplog)
    assert away.startswith(
        "target pool cannot be reached, its requests wait and are tried again: no connection"
    )
    assert back.startswith("target pool answers again, after ")


def test_one_that_answers_now_and_then_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    outage = OutageLog("pool", after=1.0, clock=lambda: now)
    for _ in range(10):
        outage.unreachable("refused")
        now += 0.9
        outage.unreachable("refused")
        outage.answered()
    assert warned(caplog) == []


async def test_a_broker_that_may_drop_requests_is_said_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path) as server:
        config = read_config(document("http://127.0.0.1:9", broker=server.url), {})
        async with RedisBroker(server.url) as broker:
            async with DispatcherServer(config):
                assert warned(caplog) == []
            await broker._client.config_set("maxmemory-policy", "allkeys-lru")
            async with DispatcherServer(config):
                [said] = warned(caplog)
                assert said.startswith("the broker's maxmemory-policy is allkeys-lru: ")
            caplog.clear()
            forbidden = "default on nopass ~* &* +@all -config"
            await broker._client.execute_command("ACL", "SETUSER", *forbidden.split())
            async with DispatcherServer(config):
                assert warned(caplog) == []
