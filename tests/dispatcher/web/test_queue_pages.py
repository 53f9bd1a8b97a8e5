"""The dispatcher's page as JSON and as a browser gets it: queues, gates, tenants, results; who may see it."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from adsum.config.problems import ConfigError
from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueRules, TenantBacklog, Totals
from dispatcher.broker.opening import open_broker
from dispatcher.config.config_file import read_config
from dispatcher.gates.metering.meter import MeterState
from dispatcher.server import DispatcherServer
from dispatcher.telemetry.metrics import DispatcherTelemetry
from dispatcher.telemetry.recent_results import STEPS, RecentResults
from dispatcher.web.queue_page import MOST_TENANTS, QueueState, queues_document
from tests.dispatcher.dispatching import document
from tests.dispatcher.queued import HOUR
from tests.dispatcher.target import Asked, Target, never
from tests.eventually import eventually
from tests.redis_server import RedisServer

TOKEN = "0123456789abcdef-token"
SECRET = "the prompt of somebody"
UNREADABLE = {
    "type": "endpoint-scrape",
    "params": {
        "url": "http://127.0.0.1:9/metrics",
        "metric": "queue_size",
        "pods": 1,
        "max_concurrency": 4,
        "interval": "100ms",
    },
}
CLOSED = {"name": "batch", "gate": UNREADABLE}
NONE_RECENT = {"succeeded": 0, "failed": 0, "expired": 0, "retries": 0, "shed": 0}
OPEN = {"name": "batch", "weights": {"gold": 3.0}}


class Page:
    """The pages of one running dispatcher."""

    def __init__(self, ready: str, session: aiohttp.ClientSession) -> None:
        """`ready`: what the dispatcher says once it is."""
        self.ready = dict(word.split("=") for word in ready.split()[1:])
        self.url = f"http://{self.ready['http']}"
        self._session = session

    async def status(self, path: str, **headers: str) -> int:
        async with self._session.get(self.url + path, headers=headers) as answer:
            return answer.status

    async def text(self, path: str, **headers: str) -> str:
        async with self._session.get(self.url + path, headers=headers) as answer:
            return await answer.text()

    async def found(self) -> dict[str, Any]:
        text = await self.text("/debug/queues")
        assert SECRET not in text
        return dict(json.loads(text))

    async def queue(self) -> dict[str, Any]:
        [queue] = (await self.found())["queues"]
        return dict(queue)

    async def enqueue(self, count: int = 1) -> None:
        headers = {"X-Dispatch": "enqueue", "X-Dispatch-Deadline": "1h"}
        for _ in range(count):
            body = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}
            async with self._session.post(
                f"{self.url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                assert answer.status == 202, await answer.text()


@asynccontextmanager
async def running(
    url: str, queue: dict[str, Any], broker: str = "memory://", **http: Any
) -> AsyncIterator[Page]:
    given = yaml.safe_load(document(url, queue, broker=broker, request_timeout="30s"))
    given["front_door"] = {"queue": "batch"}
    given["http"] |= http
    async with (
        DispatcherServer(read_config(yaml.safe_dump(given), {})) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Page(server.ready_line, session)


async def test_a_queue_from_idle_to_its_results(target: Target) -> None:
    release = asyncio.Event()

    async def slow(asked: Asked) -> web.StreamResponse:
        await release.wait()
        return web.json_response({"answer": SECRET})

    target.answer = slow
    async with running(target.url, OPEN) as page:
        await eventually(lambda: _is(page, activity="idle", waits_for=None))
        await page.enqueue(3)
        slots = {"in_use": 3, "limit": 64}  # in between the pump holds those it looks for work for
        await eventually(lambda: _is(page, activity="sending", in_flight=3, slots=slots))
        release.set()
        await eventually(lambda: _is(page, in_flight=0, activity="idle"))
        await eventually(lambda: _totals(page, submitted=3, succeeded=3, pending=0))
        queue = await page.queue()
        assert queue["recent"] == {**NONE_RECENT, "succeeded": 3}
        assert queue["steps"][-1][0] + sum(good for good, _ in queue["steps"][:-1]) == 3
        assert queue["latency"]["p95"] is not None
        assert queue["front_door"] is True


async def test_what_a_closed_gate_waits_for_and_who_waits_behind_it(target: Target, redis_url: str) -> None:
    async with running(target.url, CLOSED, broker=redis_url) as page, open_broker(redis_url) as broker:
        async with broker.queue("batch", QueueRules()) as queue:
            deadline = await broker.now_ms() + HOUR
            for n in range(3):
                await queue.submit(Request(f"a{n}", SECRET.encode(), deadline, "silver"))
            await queue.submit(Request("b", SECRET.encode(), deadline + 1000, "<b>gold</b>"))
        await eventually(lambda: _is(page, activity="waiting"))
        found = await page.found()
        [gate] = found["gates"]
        assert (gate["available"], gate["queue"]) == (False, "batch")
        assert gate["reason"] == "127.0.0.1:9: cannot be reached: Connection refused"
        assert "cannot be read" in found["queues"][0]["waits_for"]
        assert found["queues"][0]["closed_since"] is not None
        await eventually(lambda: _tenants(page, {"silver": 3, "<b>gold</b>": 1}))
        [first] = [row for row in (await page.found())["tenants"] if row["tenant"] == "silver"]
        assert first["earliest_deadline"] == deadline / 1000


async def test_a_tenant_that_is_over_its_quota(target: Target) -> None:
    target.answer = never
    quota = {"type": "redis-quota", "params": {"limit": 1}}
    both = {
        "type": "all-of",
        "params": {"gates": [quota, {"type": "local-max-concurrency", "params": {"limit": 9}}]},
    }
    async with running(target.url, {"name": "batch", "gate": both}) as page:
        await page.enqueue(2)
        await eventually(lambda: _blocked(page))
        [gate] = (await page.found())["gates"]
        assert (gate["gate"], gate["available"]) == ("all-of (redis-quota, local-max-concurrency)", None)


async def test_a_broker_that_is_away_is_told(target: Target, tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        async with running(target.url, OPEN, broker=server.url) as page:
            await eventually(lambda: _totals(page, pending=0))
            server.pause()
            await eventually(lambda: _is(page, activity="away", totals=None))
            await eventually(lambda: _problem(page, "the broker does not answer"))
            server.resume()
            await eventually(lambda: _is(page, activity="idle"))


async def test_the_page_is_for_this_machine_and_the_front_door_for_all(
    target: Target, tmp_path: Path
) -> None:
    async with running(target.url, OPEN) as page:
        foreign = {"Host": "dispatcher.example", "Accept": "text/html"}
        assert "<title>adsum dispatcher</title>" in await page.text("/", Accept="text/html")
        assert (await page.text("/")).split()[:3] == ["/debug/queues", "/healthz", "/readyz"]
        for path in ("/", "/debug/queues", "/updates", "/web/dispatcher.js"):
            assert await page.status(path, **foreign) == 403
        assert await page.status("/metrics", **foreign) == 200
        assert await page.status("/v1/requests/none", **foreign) == 404
    (tmp_path / "token").write_text(TOKEN)
    more = {"debug_token_file": str(tmp_path / "token"), "debug_address": "127.0.0.1:0"}
    async with running(target.url, OPEN, **more) as page:
        assert await page.status("/debug/queues", **foreign) == 401
        assert await page.status("/debug/queues", **foreign, Authorization=f"Bearer {TOKEN}") == 200
        page.url = f"http://{page.ready['debug']}"
        assert await page.status("/debug/queues") == 200
        assert await page.status("/v1/requests/none") == 404
        assert "/healthz" not in await page.text("/")


@pytest.mark.parametrize(
    ("http", "complaint"),
    [
        ({"debug_address": "8081"}, "http.debug_address: '8081' is not host:port"),
        ({"debug_token_file": "/nowhere"}, "http.debug_token_file: the file /nowhere cannot be read"),
    ],
)
async def test_a_setting_that_cannot_be_used_is_told(http: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        async with running("http://127.0.0.1:9", OPEN, **http):
            raise AssertionError


async def _is(page: Page, **expected: Any) -> bool:
    queue = await page.queue()
    return {name: queue[name] for name in expected} == expected


async def _totals(page: Page, **expected: int) -> bool:
    totals = (await page.queue())["totals"]
    return totals is not None and {name: totals[name] for name in expected} == expected


async def _tenants(page: Page, expected: dict[str, int]) -> bool:
    return {row["tenant"]: row["waiting"] for row in (await page.found())["tenants"]} == expected


async def _blocked(page: Page) -> bool:
    rows = (await page.found())["tenants"]
    shown = [(row["tenant"], row["waiting"], bool(row["waits_for"])) for row in rows]
    return shown == [("default", 1, True)]


async def _problem(page: Page, expected: str) -> bool:
    return expected in (await page.found())["problem"]


async def test_no_more_have_succeeded_than_were_submitted(target: Target) -> None:
    """The broker is asked now and then, and what this process counted is shown as of then."""
    async with running(target.url, OPEN) as page:
        for _ in range(20):
            await page.enqueue(5)
            queue = await page.queue()
            if queue["totals"] is not None:
                assert queue["recent"]["succeeded"] <= queue["totals"]["succeeded"]
        await eventually(lambda: _totals(page, submitted=100, succeeded=100))
        await eventually(lambda: _is(page, recent={**NONE_RECENT, "succeeded": 100}))


NOTHING = RecentResults(DispatcherTelemetry()).of("batch", "pool")
WAITING = Totals(submitted=5, pending=5)
DELAYED = Totals(submitted=2, pending=2, delayed=2)


def state(**given: Any) -> QueueState:
    known = {"name": "batch", "target": "pool", "gate": "constant", "budget": 1.0, "slots": (0, 4)}
    return QueueState(**{**known, "in_flight": 0, "recent": NOTHING, "totals": Totals(), **given})


@pytest.mark.parametrize(
    ("given", "activity", "waits_for"),
    [
        ({}, "idle", ""),
        ({"in_flight": 2}, "sending", ""),
        ({"totals": None, "away": True, "blocked_by": "the broker is away"}, "away", ""),
        ({"totals": None}, "unknown", ""),
        ({"totals": None, "in_flight": 2}, "sending", ""),
        ({"totals": WAITING, "blocked_by": "the budget is 0"}, "waiting", "the budget is 0"),
        ({"totals": WAITING, "slots": (4, 4)}, "waiting", "a free slot: all 4 of the target pool are in use"),
        ({"totals": WAITING, "blocked_tenants": {"a": "its quota"}}, "waiting", "its quota"),
        ({"totals": WAITING}, "waiting", "its turn"),
        ({"totals": DELAYED}, "waiting", "the next attempt, after one that failed"),
        ({"totals": DELAYED, "in_flight": 2}, "sending", ""),
        ({"totals": DELAYED, "blocked_by": "the target is away"}, "waiting", "the target is away"),
        ({"totals": Totals(submitted=1, pending=1, claimed=1)}, "idle", ""),  # by another process
        # a gate that lets through what there is room for closes again and again
        ({"totals": WAITING, "in_flight": 3, "blocked_by": "full", "blocked_for": 1.0}, "sending", ""),
        ({"totals": WAITING, "in_flight": 3, "blocked_by": "full", "blocked_for": 60.0}, "waiting", "full"),
    ],
)
def test_what_a_queue_does_and_waits_for(given: dict[str, Any], activity: str, waits_for: str) -> None:
    found = state(**given)
    assert (found.activity, found.waits_for) == (activity, waits_for)


def test_a_number_that_makes_no_sense_is_not_known() -> None:
    meters = [MeterState("load", math.nan, math.inf, False, "x" * 5000)]
    document = queues_document([state(budget=math.inf, meters=meters)], 0.0, "")
    [gate] = document["gates"]
    assert (gate["value"], gate["closes_at"], document["queues"][0]["budget"]) == (None, None, None)
    assert len(gate["reason"]) < 310


def test_tenants_are_bounded_in_number_and_length() -> None:
    backlog = [TenantBacklog(f"{n}-{'t' * 1000}", 1, 0) for n in range(MOST_TENANTS)]
    blocked = {f"blocked-{n}": "its quota" for n in range(1000)}
    rows = queues_document([state(backlog=backlog, blocked_tenants=blocked)], 0.0, "")["tenants"]
    assert len(rows) == MOST_TENANTS
    assert max(len(row["tenant"]) for row in rows) < 310


def _count(telemetry: DispatcherTelemetry, succeeded: int, failed: int = 0, seconds: float = 0.3) -> None:
    counters = telemetry.of("batch", "pool")
    counters.counters["successful_requests"] += succeeded
    counters.counters["failed_requests"] += failed
    for _ in range(succeeded + failed):
        counters.inference_ms.observe(seconds * 1000)


def test_the_results_of_the_last_minutes_forget_what_is_older() -> None:
    telemetry = DispatcherTelemetry()
    recent = RecentResults(telemetry)
    _count(telemetry, 3, seconds=9)
    assert recent.of("batch", "pool").steps == [(3, 0)]
    recent.sample()
    _count(telemetry, 5, failed=2)
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.counts["failed"], found.steps) == (8, 2, [(3, 0), (5, 2)])
    for _ in range(STEPS - 1):
        recent.sample()
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.counts["failed"], len(found.steps)) == (5, 2, STEPS)
    assert found.latency["p95"] == pytest.approx(0.4875), "between 250 and 500 ms, without the slow ones"
    recent.sample()
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.latency) == (0, {"p50": None, "p95": None})


def test_a_queue_that_came_later_is_counted_from_its_start() -> None:
    telemetry = DispatcherTelemetry()
    recent = RecentResults(telemetry)
    for _ in range(STEPS):
        recent.sample()
    _count(telemetry, 4, seconds=1000)
    found = recent.of("batch", "pool")
    assert (found.counts["succeeded"], found.steps[-1]) == (4, (4, 0))
    assert found.latency["p50"] == 300.0, "the last bound, for what is above it"
