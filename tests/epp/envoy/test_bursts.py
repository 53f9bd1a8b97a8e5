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

        for letters in ("ab", "cd", "ef"):  # a machine that stands still may make two windows of one burst
            served = await asyncio.gather(*(ask(letter) for letter in letters * 6))
            workers = [set(served[at::2]) for at in range(2)]
            if [len(each) for each in workers] == [1, 1]:
                break
    assert [len(each) for each in workers] == [1, 1]
    assert workers[0] != workers[1]
