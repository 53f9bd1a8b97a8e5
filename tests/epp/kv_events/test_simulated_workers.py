"""Simulated workers publish in the forms of three engines, old and new, and what they say they hold is what they deliver."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
from aiohttp import web

from discovery.instance import InstanceStatus
from epp.decision_commands.decision_text import details
from epp.decisions.document import describe
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PREFIX_HITS, PREFIX_QUERIES
from epp.scheduling.kv_events.event_stream import Knowledge
from examples.simulator.app import ModelServer
from examples.simulator.faults import Faults
from examples.simulator.kv_events import CacheEvents
from examples.simulator.kv_messages import KvFormat
from examples.simulator.kv_publisher import KvEventPublisher
from examples.simulator.metrics_page import MetricsPage
from examples.simulator.openai_api import Profile
from examples.simulator.pacing import Pacer
from examples.simulator.scheduler_model import Limits, SchedulerModel
from examples.simulator.state import WorkerState
from examples.simulator.tokens import token_id, tokenize
from tests.epp.kv_events.test_feed import Pool, config, until

pytestmark = pytest.mark.anyio

LIMITS = Limits(num_blocks=80)
PROMPT = "the same long beginning of many prompts " * 20
BLOCKS = len(tokenize(PROMPT)) // LIMITS.block_size
ADVERTISED = (KvFormat.VLLM, KvFormat.SGLANG)


class SimulatedWorker:
    def __init__(self, port: int, events: CacheEvents, http: aiohttp.ClientSession) -> None:
        self.port = port
        self.events = events
        self.http = http

    async def complete(self, prompt: str, **more: Any) -> int:
        """Returns the tokens that its usage says were cached."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 1} | more
        async with self.http.post("/v1/completions", json=body) as answer:
            said = await answer.json()
        assert answer.status == 200, said
        return int(said["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def fault(self, name: str) -> None:
        async with self.http.post("/fault", data=name) as answer:
            assert answer.status == 200, await answer.text()


@asynccontextmanager
async def simulated(format: KvFormat) -> AsyncIterator[SimulatedWorker]:
    async with AsyncExitStack() as stack:
        publisher = KvEventPublisher(topic_in_replay=not format.endswith("-old"))
        await stack.enter_async_context(publisher)
        events = CacheEvents(format, publisher, LIMITS.block_size)
        model, state = SchedulerModel(LIMITS, events), WorkerState()
        pacer = Pacer(model, 100, events.flush)
        events.forget_cache, state.status = model.forget_cache, InstanceStatus.READY
        profile, page = Profile("w0", "m", (), LIMITS.kv_tokens), MetricsPage("m", LIMITS)
        server = ModelServer(profile, pacer, page, state, LIMITS.block_size, Faults(events), events)
        runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(pacer.run)
        stack.callback(tasks.cancel_scope.cancel)
        yield SimulatedWorker(port, events, http)


@asynccontextmanager
async def followed(*workers: SimulatedWorker) -> AsyncIterator[Pool]:
    parameters: dict[str, Any] = {}
    if workers[0].events.format not in ADVERTISED:
        found = {"socketPort": workers[0].events.publisher.ports[0]}
        parameters = {"kvEventsConfig": {"podDiscoveryConfig": found}}
    made = Pool(workers, config(**parameters))
    async with made.feed:
        yield made


@pytest.mark.parametrize("format", KvFormat)
async def test_what_a_worker_says_it_holds_is_what_it_delivers(format: KvFormat) -> None:
    async with simulated(format) as worker, followed(worker) as pool:
        if format in ADVERTISED:
            await until(pool.is_exact)
            assert await worker.complete(PROMPT) == 0
        else:  # no replay is known of: until the subscription has taken effect, nothing is heard
            await until(lambda: pool.knowledge() == [Knowledge.UNKNOWN])
            for number in range(100):
                await worker.complete(f"{number} {PROMPT}")
                await worker.fault("sleep")
                await asyncio.sleep(0.05)
                if pool.blocks(0):
                    break
            await worker.complete(PROMPT)
        tokens = [token_id(token) for token in tokenize(PROMPT)]
        await until(lambda: pool.match(tokens) == BLOCKS)
        assert await worker.complete(PROMPT) == (len(tokens) - 1) // 16 * 16
        for number in range(10):
            await worker.complete(f"{number} {PROMPT}")
        await until(lambda: pool.match(tokens) == 0)
        assert await worker.complete(PROMPT) == 0


@pytest.mark.parametrize("format", ADVERTISED)
async def test_salts_are_other_prompts_for_workers_and_picker(format: KvFormat) -> None:
    async with simulated(format) as worker, followed(worker) as pool:
        await until(pool.is_exact)
        await worker.complete(PROMPT, cache_salt="mine")
        tokens = [token_id(token) for token in tokenize(PROMPT)]
        await until(lambda: pool.match(tokens, "mine") == BLOCKS)
        assert pool.match(tokens) == 0
        assert await worker.complete(PROMPT) == 0


@pytest.mark.parametrize("format", ADVERTISED)
async def test_a_worker_says_the_tokens_that_its_events_name(format: KvFormat) -> None:
    async with simulated(format) as one, simulated(format) as other, followed(one, other) as pool:
        await until(pool.is_exact)
        await other.complete(PROMPT)
        await until(lambda: pool.blocks(1) == BLOCKS)
        assert await pool.goes_to(PROMPT) == {"w1"}


async def test_faults_are_recovered_from() -> None:
    async with simulated(KvFormat.VLLM) as worker, followed(worker) as pool:
        await until(pool.is_exact)
        tokens = [token_id(token) for token in tokenize(PROMPT)]
        await worker.fault("lost-batches")
        await worker.complete(PROMPT)
        await worker.fault("none")
        await worker.complete(f"other {PROMPT}")
        await until(lambda: pool.is_exact() and pool.match(tokens) == BLOCKS)
        await worker.fault("restart")
        await until(lambda: pool.is_exact() and pool.blocks(0) == 0)
        await worker.fault("sparse-groups")
        await worker.complete(PROMPT)
        await until(lambda: pool.match(tokens) == BLOCKS)
        for number in range(10):
            await worker.complete(f"{number} {PROMPT}")
        await until(lambda: pool.match(tokens) == 0)
        assert pool.knowledge() == [Knowledge.EXACT]


async def answered(pool: Pool, worker: SimulatedWorker, prompt: str, *, said: bool) -> None:
    """One request by the picker's choice. `said`: its usage is read; else the page is, before the next pick."""
    pick = await pool.pick(prompt)
    (server,) = [one for one in pool.store.endpoints if one.port == worker.port]
    while pick.endpoints[0] is not server:
        pool.director.picks.responded(pick, 500, 0.0)
        pool.director.picks.release(pick, 0.0)
        pick = await pool.pick(prompt)
    cached = await worker.complete(prompt)
    pool.director.picks.responded(pick, 200, 0.0)
    pool.director.picks.release(pick, 0.0)
    if said:
        pool.producer.delivered(pick.request, cached)
        return
    async with worker.http.get("/metrics") as answer:
        page = await answer.text()
    found = [
        float(re.findall(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", page, re.MULTILINE)[0])
        for name in ("queries", "hits")
    ]
    counted = dict(zip((PREFIX_QUERIES, PREFIX_HITS), found, strict=True))
    now = asyncio.get_running_loop().time()
    pool.store.observe(server, Load(waiting=0.0, running=0.0, kv_usage=0.0, others=counted), now, 0.05)


@pytest.mark.parametrize("said", [True, False])
async def test_a_worker_whose_events_are_wrong_is_estimated_until_they_are_right(said: bool) -> None:
    async with (
        simulated(KvFormat.VLLM) as one,
        simulated(KvFormat.VLLM) as other,
        followed(one, other) as pool,
    ):
        await until(pool.is_exact)
        await one.complete(PROMPT)
        await until(lambda: pool.blocks(0) == BLOCKS)
        first, second = pool.store.endpoints

        async def told(by: str, most: int) -> None:
            word = pool.producer.says(first)
            for _ in range(most):
                if word is not None and word.by == by:
                    break
                await answered(pool, one, PROMPT, said=said)
                word = pool.producer.says(first)
            assert word is not None
            assert word.by == by

        for _ in range(40):
            await answered(pool, one, PROMPT, said=said)
        word = pool.producer.says(first)
        assert word is not None
        assert (word.by, word.confidence) == ("events", 1.0)
        assert word.checks > 1
        await one.fault("forgets")
        await told("estimate", 100)
        assert pool.producer.says(second) == ("events", 1.0, 0)
        body = msgspec.json.encode({"model": "m", "prompt": PROMPT})
        explained = pool.director.explain({":path": "/v1/completions"}, body, None, 0.0)
        text = "\n".join(details(describe(explained, 0.0, lambda at: at, 9)))
        assert "caches known from events: w1" in text
        assert "cache of w0 estimated, though it publishes events: confidence 0." in text
        assert pool.feed.describe()["kv_events"]["confidence"]["w0"]["believed"] is False
        await one.fault("none")
        await told("events", 400)
