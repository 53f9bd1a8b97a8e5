"""Through a real Envoy: tokens are in flight until the first piece of the answer, where it sends bodies; else to the headers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.eventually import eventually

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: prefix-cache-affinity-filter}
- {type: token-load-scorer}
"""


@dataclass
class Worker:
    """Answers in steps: its headers, a first event, the end, each when its event is set."""

    headers: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        kind = "text/event-stream" if asked.get("stream") else "application/json"
        response = web.StreamResponse(headers={"content-type": kind})
        await self.headers.wait()
        await response.prepare(request)
        await self.first.wait()
        await response.write(b"data: {}\n\n")
        await self.end.wait()
        return response


@dataclass
class Front:
    worker: Worker
    client: aiohttp.ClientSession
    url: str
    page: str

    def ask(self, letter: str = "x", *, stream: bool = True) -> asyncio.Task[bytes]:
        return asyncio.create_task(self._ask(letter, stream=stream))

    async def _ask(self, letter: str, *, stream: bool) -> bytes:
        body = {"model": "m", "prompt": letter * 3998, "stream": stream}
        async with self.client.post(self.url, json=body) as answer:
            return await answer.read()

    async def in_flight(self) -> tuple[float, float]:
        """Requests and tokens."""
        async with self.client.get(self.page) as answer:
            lines = (await answer.text()).splitlines()
        values = {
            name: [
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"llm_d_epp_inflight_{name}{{")
            ]
            for name in ("requests", "tokens")
        }
        return sum(values["requests"]), sum(values["tokens"])

    async def until(self, requests: float, tokens: float) -> None:
        await eventually(lambda: self._is(requests, tokens))

    async def _is(self, requests: float, tokens: float) -> bool:
        return await self.in_flight() == (requests, tokens)


@asynccontextmanager
async def front(running_envoy: Any, *way: str) -> AsyncIterator[Front]:
    async with AsyncExitStack() as stack:
        worker = Worker()
        port = await started_worker(stack, "/v1/completions", worker.answer)
        envoy, addresses = await stack.enter_async_context(
            picker_behind_envoy(running_envoy, [port], *way, config_text=CONFIG)
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Front(worker, client, envoy.url("/v1/completions"), f"http://{addresses['metrics']}/metrics")


@pytest.mark.parametrize("mode", ["STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_with_bodies_the_first_piece_the_end_or_the_client_ends_a_prompt(
    running_envoy: Any, mode: str
) -> None:
    trailers = ["--response-trailer=SEND"] if mode != "STREAMED" else []
    async with front(running_envoy, f"--response-body={mode}", *trailers) as it:
        gone = it.ask("z")
        await it.until(1, 1024)
        gone.cancel()
        await it.until(0, 0)
        answer = it.ask()
        # 16 blocks of 64 tokens: the last one counts as a whole one
        await it.until(1, 1024)
        it.worker.headers.set()
        it.worker.first.set()
        await it.until(1, 0)
        it.worker.end.set()
        assert await answer == b"data: {}\n\n"
        await it.until(0, 0)
        it.worker.headers.clear()
        whole = it.ask("y", stream=False)
        await it.until(1, 1024)
        it.worker.headers.set()
        await whole
        await it.until(0, 0)


async def test_without_bodies_the_end_of_the_answer_ends_it(running_envoy: Any) -> None:
    async with front(running_envoy) as it:
        answer = it.ask()
        await it.until(1, 1024)
        for event in it.worker.headers, it.worker.first, it.worker.end:
            event.set()
        await answer
        await it.until(0, 0)


async def test_where_ext_proc_tells_of_it_the_headers_end_it(running_envoy: Any) -> None:
    async with front(running_envoy, "--outcomes=ext-proc") as it:
        answer = it.ask()
        await it.until(1, 1024)
        it.worker.headers.set()
        await it.until(0, 0)
        it.worker.first.set()
        it.worker.end.set()
        await answer
