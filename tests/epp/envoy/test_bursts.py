"""Through a real Envoy: equal prompts of one window go to one worker."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web

from epp.config.settings import Settings
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from epp.server import PickerServer

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 4000}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
"""


async def started_worker(stack: AsyncExitStack, name: str) -> int:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"by": name})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    return port


async def test_equal_prompts_wait_for_each_other_and_go_together(running_envoy: Any) -> None:
    async with AsyncExitStack() as stack:
        ports = [await started_worker(stack, name) for name in ("w0", "w1", "w2", "w3")]
        settings = Settings(
            discovery="static://" + ",".join(f"127.0.0.1:{port}" for port in ports), host="127.0.0.1", grpc_port=0,
            grpc_health_port=0, metrics_port=0, secure_serving=False, config_text=CONFIG,
        )  # fmt: skip
        server = await stack.enter_async_context(PickerServer(settings))
        grpc = dict(pair.split("=") for pair in server.ready_line.split()[1:])["grpc"]
        arguments = ["--listen-port=0", "--admin-port=0", "--secure=false", f"--epp={grpc}"]
        envoy = await stack.enter_async_context(running_envoy(render(envoy_flags.parse(arguments))))
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(letter: str) -> str:
            body = {"model": "m", "prompt": letter * 3000}
            async with client.post(envoy.url("/v1/completions"), json=body) as answer:
                assert answer.status == 200
                by: str = (await answer.json())["by"]
                return by

        served = await asyncio.gather(*(ask(letter) for letter in "abab" * 3))
    by_letter = {letter: {by for at, by in enumerate(served) if "ab"[at % 2] == letter} for letter in "ab"}
    assert {len(workers) for workers in by_letter.values()} == {1}
    assert by_letter["a"] != by_letter["b"]
