"""Through a real Envoy: answers whose headers come at their end, so that those who ask meanwhile must not wait; and ends that are hidden."""

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config.settings import TransportKind
from epp.endpoints.datastore import Datastore
from epp.envoy.config import render
from epp.envoy.json_values import Address
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.epp.envoy.test_envoy import LOCAL, Mesh
from tests.epp.scheduling.endpoint_pools import add_worker
from tests.epp.scheduling.test_director import director, load
from tests.eventually import eventually
from tests.http_server import http_server

FRESH = 1e12
"""A page that is not stale however long the test takes."""
BEGINNING = "Tell me about the sea. " * 100


class Workers:
    """Two that answer when they are told to, with that status."""

    def __init__(self) -> None:
        self.went = Counter[str]()
        self.arrived = asyncio.Event()
        self.go_on = asyncio.Event()
        self.status = 200

    async def store(self, stack: AsyncExitStack) -> Datastore:
        store = Datastore()
        for number in range(2):
            worker = http_server({"POST /{path:.*}": self._answering(f"w{number}")})
            port = await stack.enter_async_context(worker)
            add_worker(store, address="127.0.0.1", port=port, is_seen=False)
            load(store, number, now=FRESH)
        return store

    def _answering(self, name: str) -> Any:
        async def answer(request: web.Request) -> web.Response:
            await request.read()
            self.went[name] += 1
            self.arrived.set()
            await self.go_on.wait()
            return web.json_response({}, status=self.status)

        return answer


async def test_while_an_answer_is_held_its_beginning_is_known_and_forgotten_if_it_fails(
    running_envoy: Any,
) -> None:
    workers = Workers()
    async with AsyncExitStack() as stack:
        it = director(await workers.store(stack))
        mesh = Mesh(TransportKind.HTTP2, stack, running_envoy, it)
        picker = await mesh.picker()
        envoy = await mesh.envoy(render(replace(LOCAL, pickers=(Address("127.0.0.1", picker.port),))))
        client = await mesh.client()
        producer: Any = it.producers[0]

        async def ask(end: str) -> int:
            body = {"model": "m", "prompt": BEGINNING + end}
            async with client.post(envoy.url("/v1/completions"), json=body) as answer:
                return answer.status

        first = asyncio.create_task(ask("first"))
        async with asyncio.timeout(90):
            await workers.arrived.wait()
            others = [asyncio.create_task(ask(str(number))) for number in range(5)]
            await eventually(lambda: workers.went.total() >= 6)
        assert len(workers.went) == 1, "all where the first one is, though nobody has an answer"
        assert len(producer.index) > 0
        workers.status = 503
        workers.go_on.set()
        assert set(await asyncio.gather(first, *others)) == {503}
        await eventually(lambda: len(producer.index) == 0)


async def test_what_a_client_gave_up_is_forgotten(running_envoy: Any) -> None:
    workers = Workers()
    async with AsyncExitStack() as stack:
        it = director(await workers.store(stack))
        mesh = Mesh(TransportKind.HTTP2, stack, running_envoy, it)
        picker = await mesh.picker()
        envoy = await mesh.envoy(render(replace(LOCAL, pickers=(Address("127.0.0.1", picker.port),))))
        producer: Any = it.producers[0]
        async with aiohttp.ClientSession() as client, asyncio.timeout(90):
            body = {"model": "m", "prompt": BEGINNING}
            asking = asyncio.create_task(client.post(envoy.url("/v1/completions"), json=body))
            await workers.arrived.wait()
            assert len(producer.index) > 0
            asking.cancel()
            await eventually(lambda: len(producer.index) == 0)
        workers.go_on.set()


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
