"""Flow control through a real Envoy, as a configuration file switches it on: every way in which a wait ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config.settings import TransportKind
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from epp.server import PickerServer
from tests.epp.envoy.picker_stage import started_worker
from tests.epp.local_picker import addresses, local
from tests.eventually import eventually

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: %s
  noEndpointRequestTTL: %s
"""


class HeldWorker:
    """Answers each request when it is told to; knows the prompts in the order in which they came."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.most = self.here = 0
        self._may_answer = asyncio.Semaphore(0)

    def answers(self, count: int) -> None:
        for _ in range(count):
            self._may_answer.release()

    async def answer(self, request: web.Request) -> web.Response:
        self.here += 1
        self.most = max(self.most, self.here)
        self.prompts.append((await request.json())["prompt"])
        try:
            await self._may_answer.acquire()
        finally:
            self.here -= 1
        return web.json_response({})


class Stage:
    """One worker that is listed or not, a picker with flow control, Envoy, and clients."""

    def __init__(self, stack: AsyncExitStack, transport: TransportKind, envoy: Any, path: Path) -> None:
        self._stack = stack
        self._transport = transport
        self._running_envoy = envoy
        self._path = path
        self.worker = HeldWorker()

    async def open(
        self, *, request_ttl: str = "600s", no_endpoint_ttl: str = "600s", listed: bool = True, more: str = ""
    ) -> None:
        stack = self._stack
        self._port = await started_worker(stack, "/{path:.*}", self.worker.answer)
        self.config = self._path / "config.yaml"
        self.config.write_text(f"{CONFIG % (request_ttl, no_endpoint_ttl)}  {more}\n")
        self.list_worker(listed)
        settings = local(
            discovery=f"static://{self._listing}",
            transport=self._transport,
            config_file=self.config,
            objectives={"high": 10, "low": -1},
        )
        self.server = await stack.enter_async_context(PickerServer(settings))
        where = addresses(self.server)
        self._metrics = f"http://{where['metrics']}/metrics"
        flags = ["--listen-port=0", "--admin-port=0", "--secure=false", f"--epp={where['grpc']}"]
        flags.append(f"--picker-config={self.config}")
        self._envoy = await stack.enter_async_context(self._running_envoy(render(envoy_flags.parse(flags))))
        self._client = await stack.enter_async_context(aiohttp.ClientSession())

    @property
    def _listing(self) -> Path:
        return self._path / "endpoints.yaml"

    def list_worker(self, listed: bool = True) -> None:
        worker = f"{{name: w, address: 127.0.0.1, port: {self._port}}}" if listed else ""
        self._listing.write_text(f"endpoints: [{worker}]\n")

    async def ask(self, prompt: str, objective: str = "none") -> tuple[int, str | None]:
        url, headers = self._envoy.url("/v1/completions"), {"x-gateway-inference-objective": objective}
        async with self._client.post(url, json={"model": "m", "prompt": prompt}, headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-llm-d-request-dropped-reason")

    async def waiting(self) -> float:
        """How many requests wait, by the picker's metrics page."""
        async with self._client.get(self._metrics) as answer:
            lines = (await answer.text()).splitlines()
        sizes = [line for line in lines if line.startswith("llm_d_epp_flow_control_queue_size{")]
        return sum(float(line.split()[-1]) for line in sizes)

    async def wait_in_line(self, *asked: tuple[str, str]) -> list[asyncio.Task[Any]]:
        """One after the other, so that their order is known."""
        before, tasks = await self.waiting(), []
        for number, (prompt, objective) in enumerate(asked, 1):
            tasks.append(asyncio.create_task(self.ask(prompt, objective)))

            await self.until_waiting(before + number)
        return tasks

    async def until_waiting(self, count: float) -> None:
        """The page may be some moments old."""

        async def waits() -> bool:
            return await self.waiting() == count

        await eventually(waits)


TRANSPORTS = pytest.mark.parametrize("stage", list(TransportKind), indirect=True)
"""For tests in which the transport takes part; the others run over our own."""


@pytest.fixture
async def stage(request: pytest.FixtureRequest, running_envoy: Any, tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, getattr(request, "param", TransportKind.HTTP2), running_envoy, tmp_path)


async def test_requests_wait_for_the_first_worker_and_go_by_priority(stage: Stage) -> None:
    await stage.open(listed=False)
    asked = [("a", "none"), ("b", "none"), ("c", "high")]
    tasks = await stage.wait_in_line(*asked)
    stage.list_worker()
    stage.worker.answers(3)
    assert await asyncio.gather(*tasks) == [(200, None)] * 3
    assert (stage.worker.prompts, stage.worker.most) == (["c", "a", "b"], 1)
    await stage.until_waiting(0)


async def test_a_request_that_waits_has_no_task_of_its_own(stage: Stage) -> None:
    await stage.open(listed=False)
    (first,) = await stage.wait_in_line(("first", "none"))
    before = asyncio.all_tasks()
    tasks = [asyncio.create_task(stage.ask(f"{number}")) for number in range(30)]
    await stage.until_waiting(31)
    others = asyncio.all_tasks() - before - set(tasks)
    assert len(others) < 10, "those of connections, but none of each request"
    stage.list_worker()
    stage.worker.answers(31)
    assert await asyncio.gather(first, *tasks) == [(200, None)] * 31


async def test_the_wait_for_a_worker_ends_with_503(stage: Stage) -> None:
    await stage.open(listed=False, no_endpoint_ttl="300ms")
    assert await stage.ask("a") == (503, "rejected-no-endpoints")


async def test_the_wait_for_room_ends_with_429(stage: Stage) -> None:
    await stage.open(request_ttl="300ms")
    held = asyncio.create_task(stage.ask("held"))
    await eventually(lambda: stage.worker.prompts)
    assert await stage.ask("a") == (429, "rejected-ttl-expired")
    stage.worker.answers(1)
    assert await held == (200, None)


@TRANSPORTS
async def test_a_client_that_leaves_gives_its_place(stage: Stage) -> None:
    await stage.open()
    held = asyncio.create_task(stage.ask("held"))
    await eventually(lambda: stage.worker.prompts)
    gone, last = await stage.wait_in_line(("gone", "high"), ("last", "none"))
    gone.cancel()
    await stage.until_waiting(1)
    stage.worker.answers(2)
    assert await asyncio.gather(held, last) == [(200, None)] * 2
    assert stage.worker.prompts == ["held", "last"]


@TRANSPORTS
async def test_a_drain_refuses_what_waits(stage: Stage) -> None:
    await stage.open(listed=False)
    tasks = await stage.wait_in_line(("a", "none"), ("b", "high"))
    draining = asyncio.create_task(stage.server.drain())
    assert await asyncio.gather(*tasks) == [(503, "rejected-shutting-down")] * 2
    await draining


async def test_a_sheddable_request_is_taken_back_from_its_worker(stage: Stage) -> None:
    await stage.open(more="enableEviction: true")
    low = asyncio.create_task(stage.ask("low", "low"))
    await eventually(lambda: stage.worker.prompts)
    stage.worker.answers(1)
    assert await low == (200, None), "nobody waits for its place"
    low = asyncio.create_task(stage.ask("low", "low"))
    await eventually(lambda: len(stage.worker.prompts) == 2)
    high = asyncio.create_task(stage.ask("high", "high"))
    assert await low == (429, "evicted-priority")
    await eventually(lambda: len(stage.worker.prompts) == 3)
    await eventually(lambda: stage.worker.here == 1)  # Envoy took the other one back
    stage.worker.answers(1)
    assert await high == (200, None)


async def test_a_good_reload_keeps_the_queue_and_a_bad_one_changes_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.open()
    held = asyncio.create_task(stage.ask("held"))
    await eventually(lambda: stage.worker.prompts)
    tasks = await stage.wait_in_line(("a", "none"), ("b", "none"))
    stage.config.write_text(stage.config.read_text() + "  maxRequests: -1\n")
    stage.server.reread_config()
    await eventually(lambda: "maxRequests" in caplog.text)  # it was read, and refused
    assert await stage.waiting() == 2
    stage.config.write_text((CONFIG % ("600s", "600s")).replace("maxConcurrency: 1", "maxConcurrency: 2"))
    stage.server.reread_config()
    await eventually(lambda: len(stage.worker.prompts) == 2)
    await stage.until_waiting(1)
    stage.worker.answers(3)
    assert await asyncio.gather(held, *tasks) == [(200, None)] * 3
    assert stage.worker.prompts == ["held", "a", "b"]
