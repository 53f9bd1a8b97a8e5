"""Through a real Envoy: workers that answer 500, never answer or are gone, and a picker that ejects them."""

import asyncio
import base64
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.eventually import eventually

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: random-picker, parameters: {{maxNumOfEndpoints: {endpoints}}}}}
- {{type: session-affinity-filter, parameters: {{strategy: encoded_endpoint_header}}}}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
  - pluginRef: session-affinity-filter
outlierDetection:
  consecutive5xx: 3
  consecutiveLocalOriginFailure: 3
  baseEjectionTime: {pause}
  stallTimeout: 1s
  probePath: "{probe}"
"""

POISON = "every worker answers this with 500"


@dataclass
class Worker:
    """Answers `status`; None: never."""

    status: int | None = 200
    asked: int = 0
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        prompt = (await request.json())["prompt"]
        self.asked += 1
        if prompt == POISON:
            return web.Response(status=500)
        if self.status is None:
            await self.waiting.wait()
        return web.Response(status=self.status or 500)


@dataclass
class Stage:
    workers: list[Worker]
    ports: list[int]
    client: aiohttp.ClientSession
    url: str
    metrics: str
    prompts: Iterator[int] = field(default_factory=itertools.count)

    async def ask(
        self, times: int, timeout: float = 60.0, prompt: str | None = None, at: int | None = None
    ) -> Counter[int]:
        """How often each status came, one request after the other; 0: no answer in time.

        Without `prompt` each has its own. `at`: the worker to which a session sends them.
        """
        statuses = Counter[int]()
        headers = {}
        if at is not None:
            named = f"default/127-0-0-1-{self.ports[at]}"
            headers["x-session-token"] = base64.b64encode(named.encode()).decode()
        for _ in range(times):
            body = {"model": "m", "prompt": prompt or f"{next(self.prompts):06}", "stream": True}
            try:
                async with asyncio.timeout(timeout):
                    async with self.client.post(self.url, json=body, headers=headers) as answer:
                        statuses[answer.status] += 1
            except TimeoutError:
                statuses[0] += 1
        return statuses

    async def page(self, path: str) -> str:
        async with self.client.get(f"http://{self.metrics}{path}") as answer:
            return await answer.text()

    async def outliers(self) -> list[dict[str, Any]]:
        async with self.client.get(f"http://{self.metrics}/status") as answer:
            found: list[dict[str, Any]] = (await answer.json())["outliers"]
            return found


@asynccontextmanager
async def staged(
    running_envoy: Any, count: int = 3, *, pause: str = "60s", endpoints: int = 1, probe: str = ""
) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        workers = [Worker() for _ in range(count)]
        ports = [await started_worker(stack, "/v1/completions", worker.answer) for worker in workers]
        listed = [f"--endpoint=127.0.0.1:{port}" for port in ports]
        config = CONFIG.format(pause=pause, endpoints=endpoints, probe=probe)
        envoy, addresses = await stack.enter_async_context(
            picker_behind_envoy(
                running_envoy, ports, "--mode=override-host", "--access-log=", *listed, config_text=config
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stage(workers, ports, client, envoy.url("/v1/completions"), addresses["metrics"])


async def test_a_worker_that_answers_500_to_everything_costs_few_requests(running_envoy: Any) -> None:
    async with staged(running_envoy) as stage:
        stage.workers[0].status = 500
        statuses = await stage.ask(200)
        assert statuses == {500: 3, 200: 197}
        [outlier] = await stage.outliers()
        assert (outlier["destination"], outlier["cause"]) == (
            f"127.0.0.1:{stage.ports[0]}",
            "consecutive_5xx",
        )
        page = await stage.page("/metrics")
        assert (
            'llm_d_epp_outlier_detection_ejections_total{cause="consecutive_5xx",name="default"} 1.0\n'
            in page
        )
        assert "\nllm_d_epp_outlier_detection_ejections_active{" in page


async def test_a_prompt_that_fails_everywhere_ejects_no_healthy_worker(running_envoy: Any) -> None:
    async with staged(running_envoy, 6) as stage:
        await stage.ask(12)
        for number in range(6):
            assert await stage.ask(6, prompt=POISON, at=number) == {500: 6}
        assert await stage.ask(30) == {200: 30}
        counts = re.findall(r"_ejections_total\{.*\} (.*)", await stage.page("/metrics"))
        assert (set(counts), await stage.outliers()) == ({"0.0"}, [])


async def test_an_ejected_worker_costs_one_request_for_each_trial_until_it_recovers(
    running_envoy: Any,
) -> None:
    async with staged(running_envoy, pause="100ms") as stage:
        bad = stage.workers[0]
        bad.status = 500
        statuses = Counter[int]()
        ejections = 0

        async def failed_two_trials() -> bool:
            nonlocal ejections
            statuses.update(await stage.ask(5))
            ejections = sum(one["ejections"] for one in await stage.outliers())
            return ejections >= 3

        await eventually(failed_two_trials)
        assert statuses[500] == 3 + (ejections - 1)
        bad.status = 200

        async def is_back() -> bool:
            assert (await stage.ask(5)) == {200: 5}
            return not await stage.outliers()

        await eventually(is_back)


async def test_a_worker_that_never_answers_is_ejected(running_envoy: Any) -> None:
    async with staged(running_envoy) as stage:
        stuck = stage.workers[0]
        stuck.status = None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stage.ask(1)) for _ in range(30)]

            async def is_ejected() -> bool:
                await stage.ask(1, timeout=0.5)
                return [one["cause"] for one in await stage.outliers()] == ["stalled"]

            await eventually(is_ejected)
            before = stuck.asked
            assert await stage.ask(50) == {200: 50}
            assert stuck.asked == before
            stuck.waiting.set()
            await asyncio.gather(*tasks)
