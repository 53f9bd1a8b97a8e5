"""Through a real Envoy, by the configuration that `envoy-config --usage-metrics` prints: bytes unchanged, tokens counted."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config.settings import TransportKind
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.eventually import eventually

USED = {"prompt_tokens": 700, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 512}}
LONG = 'ü€ "usage": {} \\ ' * 20_000
CHAT = json.dumps(
    {"choices": [{"message": {"content": LONG}}], "usage": USED, "prompt_logprobs": [{}]}
).encode()
EVENTS = [
    b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": LONG[:at]}}], "usage": None}).encode()
    for at in range(0, 900, 9)
]
EVENTS += [b"data: %s\n\n" % json.dumps({"choices": [], "usage": USED}).encode(), b"data: [DONE]\n\n"]
WAYS = {
    "as envoy-config prints it": ["--usage-metrics"],
    "duplex": ["--usage-metrics", "--response-body=FULL_DUPLEX_STREAMED", "--response-trailer=SEND"],
    "buffered": ["--usage-metrics", "--response-body=BUFFERED"],
}


async def chat(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    if asked.get("silent"):
        await asyncio.Event().wait()
    if asked.get("stream"):
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, event in enumerate(EVENTS):
            await response.write(event[: number % 50])
            await response.write(event[number % 50 :])
            await asyncio.sleep(0)
        return response
    if asked.get("gzip"):
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        return web.Response(body=gzip.compress(CHAT), headers=headers)
    return web.Response(body=CHAT, content_type="application/json", status=asked.get("status", 200))


@dataclass
class Front:
    """A worker, a picker and an Envoy; `counted` are the metrics of requests, by name without labels and prefix."""

    client: aiohttp.ClientSession
    url: str
    page: str

    async def ask(self, **more: Any) -> bytes:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
        async with self.client.post(self.url, json=body, headers={"accept-encoding": "gzip"}) as answer:
            return await answer.read()

    async def counted(self) -> dict[str, float]:
        async with self.client.get(self.page) as answer:
            lines = [line for line in (await answer.text()).splitlines() if line.startswith("llm_d_epp_re")]
        pairs = [
            (line.partition("{")[0].removeprefix("llm_d_epp_"), line.rpartition(" ")[2]) for line in lines
        ]
        return {name: float(value) for name, value in pairs if not name.endswith("_bucket")}


@asynccontextmanager
async def front(
    running_envoy: Any, transport: TransportKind, way: list[str], *, on: bool = True
) -> AsyncIterator[Front]:
    async with AsyncExitStack() as stack:
        port = await started_worker(stack, "/v1/chat/completions", chat)
        settings = {"transport": transport, "usage_metrics": on, "enable_grpc_stream_metrics": on}
        envoy, addresses = await stack.enter_async_context(
            picker_behind_envoy(running_envoy, [port], *way, **settings)
        )
        client = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        yield Front(client, envoy.url("/v1/chat/completions"), f"http://{addresses['metrics']}/metrics")


@pytest.mark.parametrize("transport", list(TransportKind))
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_answers_pass_unchanged_and_their_tokens_are_counted_where_they_say_them(
    running_envoy: Any, transport: TransportKind, way: list[str]
) -> None:
    async with front(running_envoy, transport, way) as it:
        assert gzip.decompress(await it.ask(gzip=True)) == CHAT
        assert await it.ask(status=500) == CHAT
        await eventually(lambda: _has(it, response_size_bytes_count=2, request_input_tokens_count=2))
        silent = await it.counted()
        assert "request_output_tokens_count" not in silent
        assert silent["request_ttft_seconds_count"] == 1, "of the compressed one"
        assert await it.ask() == CHAT
        assert await it.ask(stream=True) == b"".join(EVENTS)
        await eventually(lambda: _has(it, request_output_tokens_count=2))
        found = {name: value - silent.get(name, 0.0) for name, value in (await it.counted()).items()}
        assert found["request_input_tokens_sum"] == 1400
        assert found["request_output_tokens_sum"] == 22
        assert found["request_cached_tokens_sum"] == 1024
        assert found["response_size_bytes_sum"] == len(CHAT) + sum(map(len, EVENTS))
        assert found["request_streaming_tpot_seconds_count"] == 1
        assert found["request_ntpot_seconds_count"] == 2


@pytest.mark.parametrize("name", WAYS)
async def test_a_picker_that_asks_for_no_answers_lets_them_pass_and_reads_the_tokens_of_what_comes(
    running_envoy: Any, name: str
) -> None:
    async with front(running_envoy, TransportKind.HTTP2, WAYS[name], on=False) as it:
        assert await it.ask() == CHAT
        assert await it.ask(stream=True) == b"".join(EVENTS)
        await eventually(lambda: _has(it, request_input_tokens_count=2))
        found = await it.counted()
        assert "response_size_bytes_count" not in found
        assert found["request_input_tokens_count"] == 2
        passes = name != "as envoy-config prints it"
        assert (found["request_input_tokens_sum"] == 1400) == passes


async def _has(it: Front, **expected: float) -> bool:
    found = await it.counted()
    return all(found.get(name, 0.0) >= value for name, value in expected.items())


@pytest.mark.parametrize("transport", list(TransportKind))
async def test_streams_are_counted_by_their_end(running_envoy: Any, transport: TransportKind) -> None:
    async with front(running_envoy, transport, WAYS["as envoy-config prints it"]) as it:
        await it.ask()
        await it.ask(model=None)  # refused by the picker
        asking = asyncio.create_task(it.ask(silent=True))
        await eventually(lambda: _streams(it, inflight=1))
        asking.cancel()
        await eventually(lambda: _streams(it, inflight=0, ended=3))


async def _streams(it: Front, inflight: int, ended: int = 2) -> bool:
    """Two are OK; Envoy may half-close the third one, which is OK too, or reset it."""
    async with it.client.get(it.page) as answer:
        page = await answer.text()
    codes = {"OK": 0, "Canceled": 0}
    for code in codes:
        line = f'llm_d_epp_extproc_streams_total{{code="{code}"}} '
        codes[code] = int(float(page.partition(line)[2].partition("\n")[0] or 0))
    found = page.count(f"llm_d_epp_extproc_streams_inflight {inflight}.0\n")
    return found == 1 and codes["OK"] >= 2 and sum(codes.values()) == ended
