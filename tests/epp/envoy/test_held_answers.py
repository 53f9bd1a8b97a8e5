"""Through a real Envoy: an answer that is not streamed has its headers at its end, and those who ask meanwhile must not wait."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp import web

from epp.config.settings import TransportKind
from epp.endpoints.datastore import Datastore
from epp.envoy.config import render
from epp.envoy.json_values import Address
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
