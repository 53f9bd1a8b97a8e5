"""Limits on the size and time of bodies at the front door."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.delivery.route import Route
from dispatcher.web.front_door import FrontDoor, FrontDoorQueue
from dispatcher.web.request_bodies import RequestBodies
from tests.eventually import eventually

KIB = 1024
LARGEST = 512 * KIB
BODY = json.dumps({"model": "m", "prompt": "x" * 10 * KIB}).encode()


class Way:
    """A front door over a queue that nobody works on; `bodies` is what it holds."""

    def __init__(self, port: int, bodies: RequestBodies, stack: AsyncExitStack) -> None:
        self.port = port
        self.bodies = bodies
        self._stack = stack

    async def stalled(self, size: int) -> asyncio.StreamReader:
        """A client that has sent all of `size` bytes but the last 100; where its answer comes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._stack.push_async_callback(_close, writer)
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-dispatch: enqueue\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {size}\r\n\r\n".encode() + bytes(size - 100))
        await writer.drain()
        return reader

    async def post(self, body: bytes = BODY) -> tuple[int, Any]:
        headers = {"X-Dispatch": "enqueue", "content-type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        timeout = aiohttp.ClientTimeout(total=90)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(url, data=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def refusal(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The status and message of what a client is answered."""
    async with asyncio.timeout(90):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        said = json.loads(await reader.readexactly(length))
    return int(head.split()[1]), said["error"]["message"]


@asynccontextmanager
async def way_in(most: int = 1024 * KIB, seconds: float = 600.0) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(MemoryBroker())
        queue = await stack.enter_async_context(broker.queue("batch", QueueRules()))
        door = FrontDoorQueue(queue, Route(), 60.0, {}, LARGEST)
        bodies = RequestBodies(most, seconds)
        app = web.Application()
        FrontDoor(lambda: door, lambda: int(time.time() * 1000), 8, bodies).add_routes(app)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Way(runner.addresses[0][1], bodies, stack)


async def test_stalled_bodies_make_room_for_others() -> None:
    """8 of them are four times what may be held."""
    async with way_in() as way:
        stalled = [await way.stalled(LARGEST) for _ in range(8)]
        await eventually(lambda: way.bodies.held > 900 * KIB)
        for _ in range(20):
            assert (await way.post())[0] == 202
            assert way.bodies.held <= 1024 * KIB
        assert (await refusal(stalled[0]))[0] == 503


async def test_a_body_that_never_ends_is_refused_in_time() -> None:
    async with way_in(seconds=0.3) as way:
        status, message = await refusal(await way.stalled(1000))
        assert status == 408
        assert "within 0.3 s" in message
        assert way.bodies.held == 0


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    async with way_in() as way:
        assert (await refusal(await way.stalled(LARGEST + 1)))[0] == 413


async def test_a_client_that_leaves_gives_its_bytes_back() -> None:
    async with way_in() as way:
        async with AsyncExitStack() as stack:
            other = Way(way.port, way.bodies, stack)
            await other.stalled(LARGEST)
            await eventually(lambda: way.bodies.held)
        await eventually(lambda: way.bodies.held == 0)


async def test_what_is_in_the_queue_is_not_counted() -> None:
    async with way_in(most=2 * len(BODY)) as way:
        for _ in range(10):
            assert (await way.post())[0] == 202
        assert way.bodies.held == 0


@pytest.mark.parametrize("body", [b"[]", b"{", b""])
async def test_what_is_no_json_object_is_refused_and_held_no_more(body: bytes) -> None:
    async with way_in() as way:
        status, said = await way.post(body)
        assert status == 400
        assert "not a JSON object" in said["error"]["message"]
        assert way.bodies.held == 0
