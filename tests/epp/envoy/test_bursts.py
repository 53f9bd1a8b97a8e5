"""Through a real Envoy: equal prompts of one window go to one worker."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 4000}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
"""


def naming(name: str) -> Handler:
    """A worker that answers with its name."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"by": name})

    return answer


async def test_equal_prompts_wait_for_each_other_and_go_together(running_envoy: Any) -> None:
    async with AsyncExitStack() as stack:
        names = ("w0", "w1", "w2", "w3")
        ports = [await started_worker(stack, "/v1/completions", naming(name)) for name in names]
        envoy, _ = await stack.enter_async_context(
            picker_behind_envoy(running_envoy, ports, config_text=CONFIG)
        )
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
