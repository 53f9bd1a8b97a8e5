"""Through a real Envoy: an admission of somebody else's lets requests wait, and all ways in which that ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config.settings import Settings, TransportKind
from epp.envoy.config import render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.server import PickerServer
from tests.epp.envoy.test_envoy import ANY
from tests.epp.scheduling.fifo import Fifo

PROMPT = {"model": "m", "prompt": "hello"}
HELD = {"model": "m", "prompt": "hold"}


class Worker:
    """Answers at once, or when it is told to; knows how many it had at a time."""

    def __init__(self) -> None:
        self.here = self.most = self.answered = 0
        self.go_on = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.here += 1
        self.most = max(self.most, self.here)
        if (await request.json())["prompt"] == HELD["prompt"]:
            await self.go_on.wait()
        await asyncio.sleep(0)
        self.here -= 1
        self.answered += 1
        return web.json_response({})


class Stage:
    """One worker, a picker whose admission lets one request go at a time, Envoy, and clients."""

    def __init__(
        self, stack: AsyncExitStack, transport: TransportKind, running_envoy: Any, path: Path
    ) -> None:
        self._stack = stack
        self._transport = transport
        self._running_envoy = running_envoy
        self.listed = path / "endpoints.yaml"
        self.worker = Worker()
        self.admission = Fifo(1)

    async def open(self, ttl: float = 600.0) -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", self.worker.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        self.listed.write_text(f"endpoints: [{{name: w, address: 127.0.0.1, port: {port}}}]\n")
        self.admission = Fifo(1, ttl)
        ports = {"grpc_port": 0, "grpc_health_port": 0, "metrics_port": 0, "secure_serving": False}
        settings = Settings(
            discovery=f"static://{self.listed}", host="127.0.0.1", transport=self._transport, **ports
        )
        self.server = await self._stack.enter_async_context(PickerServer(settings, admission=self.admission))
        addresses = dict(pair.split("=") for pair in self.server.ready_line.split()[1:])
        self.metrics = addresses["metrics"]
        envoy = EnvoySettings(
            listen=ANY, admin=ANY, pickers=(Address.parse(addresses["grpc"]),), secure=False
        )
        self.envoy = await self._stack.enter_async_context(self._running_envoy(render(envoy)))
        self._client = await self._stack.enter_async_context(aiohttp.ClientSession())

    async def ask(self, body: dict[str, str] = PROMPT) -> tuple[int, str | None]:
        async with self._client.post(self.envoy.url("/v1/completions"), json=body) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-llm-d-request-dropped-reason")

    async def page(self) -> str:
        async with self._client.get(f"http://{self.metrics}/metrics") as answer:
            return await answer.text()

    async def hold(self, eventually: Any, waiting: int) -> tuple[Any, list[Any]]:
        """One request that the worker has, and `waiting` others that wait for it."""
        held = asyncio.create_task(self.ask(HELD))
        await eventually(lambda: self.worker.here == 1)
        others = []
        for number in range(waiting):
            others.append(asyncio.create_task(self.ask()))
            await eventually(lambda number=number: len(self.admission.queue) == number + 1)
        return held, others


@pytest.fixture(params=list(TransportKind))
async def stage(request: pytest.FixtureRequest, running_envoy: Any, tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack, request.param, running_envoy, tmp_path)


async def test_one_goes_when_another_is_released(stage: Stage, eventually: Any) -> None:
    await stage.open()
    held, others = await stage.hold(eventually, 12)
    assert "llm_d_epp_flow_control_queue_size{" in await stage.page()
    assert stage.worker.answered == 0
    stage.worker.go_on.set()
    assert await asyncio.gather(held, *others) == [(200, None)] * 13
    assert stage.worker.most == 1
    count = "llm_d_epp_flow_control_request_queue_duration_seconds_count{"
    async with asyncio.timeout(90):
        while count not in (page := await stage.page()):  # who asks right after another gets the same page
            await asyncio.sleep(0.02)
    (counted,) = (line for line in page.splitlines() if line.startswith(count))
    assert 'outcome="Dispatched"' in counted
    assert counted.endswith(" 12.0")


async def test_a_client_that_leaves_makes_room(stage: Stage, eventually: Any) -> None:
    await stage.open()
    held, (gone, last) = await stage.hold(eventually, 2)
    gone.cancel()
    await eventually(lambda: len(stage.admission.queue) == 1)
    stage.worker.go_on.set()
    assert await asyncio.gather(held, last) == [(200, None)] * 2
    assert stage.worker.answered == 2


async def test_a_drain_refuses_what_waits(stage: Stage, eventually: Any) -> None:
    await stage.open()
    held, others = await stage.hold(eventually, 3)
    draining = asyncio.create_task(stage.server.drain())
    assert await asyncio.gather(*others) == [(503, "rejected-shutting-down")] * 3
    stage.worker.go_on.set()
    assert await held == (200, None)
    await draining


async def test_a_worker_that_goes_leaves_nobody_waiting(stage: Stage, eventually: Any) -> None:
    await stage.open()
    held, others = await stage.hold(eventually, 2)
    stage.listed.write_text("endpoints: []\n")
    assert await asyncio.gather(*others) == [(503, "rejected-no-endpoints")] * 2
    stage.worker.go_on.set()
    assert await held == (200, None)


async def test_a_request_that_waited_too_long_is_answered_by_the_clock(stage: Stage, eventually: Any) -> None:
    await stage.open(ttl=0.5)
    held = asyncio.create_task(stage.ask(HELD))
    await eventually(lambda: stage.worker.here == 1)
    assert await stage.ask() == (429, "rejected-ttl-expired")
    stage.worker.go_on.set()
    assert await held == (200, None)
