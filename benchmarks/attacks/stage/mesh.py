"""Starts a worker, pickers and an Envoy with the configuration of `envoy-config`, and sends honest requests."""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import anyio
from aiohttp import web

from benchmarks.attacks.stage.victim import Victim, picker
from benchmarks.envoy_process import envoy

_TIMEOUT = 60.0
_PROMPT = {"model": "m", "prompt": "x" * 4_000}


@dataclass(slots=True)
class ClientAnswers:
    """Answers to honest clients: how many of each status, 0 for a time-out, and the longest wait in seconds."""

    statuses: Counter[int] = field(default_factory=Counter)
    longest: float = 0.0

    def __str__(self) -> str:
        refused = sum(self.statuses.values()) - self.statuses[200]
        return f"{refused} of {sum(self.statuses.values())} failed, the longest took {self.longest:.2f} s"


@dataclass(frozen=True, slots=True)
class Mesh:
    """`port` is where Envoy listens on 127.0.0.1."""

    port: int
    pickers: Sequence[Victim]

    async def send(self, answers: ClientAnswers) -> None:
        began, status = time.perf_counter(), 0
        limit = aiohttp.ClientTimeout(total=_TIMEOUT)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession(timeout=limit) as client:
                url = f"http://127.0.0.1:{self.port}/v1/completions"
                async with client.post(url, json=_PROMPT) as answer:
                    await answer.read()
                    status = answer.status
        answers.statuses[status] += 1
        answers.longest = max(answers.longest, time.perf_counter() - began)

    async def send_for(self, seconds: float, clients: int = 4) -> ClientAnswers:
        """Runs `clients` honest clients, each of which sends one request after the other."""
        answers, until = ClientAnswers(), time.perf_counter() + seconds

        async def one() -> None:
            while time.perf_counter() < until:
                await self.send(answers)

        await asyncio.gather(*(one() for _ in range(clients)))
        return answers


@contextlib.asynccontextmanager
async def mesh(pickers: int, *options: str) -> AsyncIterator[Mesh]:
    """`options`: more flags of the pickers. Kills all processes at the end."""
    async with contextlib.AsyncExitStack() as stack:
        worker = await stack.enter_async_context(_worker())
        started = [await stack.enter_async_context(picker([worker], *options)) for _ in range(pickers)]
        port = await stack.enter_async_context(_envoy([one.ports["grpc"] for one in started]))
        yield Mesh(port, started)


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _envoy(pickers: Sequence[str]) -> AsyncIterator[int]:
    """Yields the port of the listener."""
    asked = [word for address in pickers for word in ("--epp", address)]
    where = ("--secure=false", "--listen-port", "0", "--admin-port", "0")
    printed = await anyio.run_process([sys.executable, "-m", "epp", "envoy-config", *asked, *where])
    async with envoy(printed.stdout) as (_, port):
        yield port
