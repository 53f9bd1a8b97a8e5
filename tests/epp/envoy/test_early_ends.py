"""A pool that is full by what is in flight needs the ends of answers; an Envoy that hides them is told of in the log."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
"""
LASTS = 1.0
"""Seconds; a machine that stands still for so long brings the end of an answer together with its beginning."""


async def stream(request: web.Request) -> web.StreamResponse:
    """Headers at once, as model servers send them, and the tokens later."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await asyncio.sleep(LASTS)
    await response.write(b"data: [DONE]\n\n")
    return response


async def ask(client: aiohttp.ClientSession, url: str) -> None:
    async with client.post(url, json={"model": "m", "prompt": "x", "stream": True}) as answer:
        assert answer.status == 200
        await answer.read()


@pytest.mark.parametrize(
    ("flags", "shown"), [(["--outcomes=ext-proc"], False), (["--response-trailer=SEND"], True), ([], True)]
)
async def test_an_envoy_that_hides_the_ends_of_answers_is_told_of_once(
    running_envoy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, flags: list[str], *, shown: bool
) -> None:
    config = tmp_path / "picker.yaml"
    config.write_text(CONFIG)

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "epp.ext_proc.response_body"]

    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        port = await started_worker(stack, "/v1/completions", stream)
        running = picker_behind_envoy(running_envoy, [port], *flags, config_file=config)
        envoy, _ = await stack.enter_async_context(running)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(3 if shown else 300):
            await asyncio.gather(*(ask(client, envoy.url("/v1/completions")) for _ in range(4)))
            if warnings():
                break
    assert len(warnings()) == (0 if shown else 1)
    assert shown or "--response-trailer SEND" in warnings()[0]
