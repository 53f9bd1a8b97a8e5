"""Clients that take connections and memory of a real Envoy with the printed configuration: the others are served."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.free_port import free_port

DESCRIPTORS, CONNECTIONS, MANY = 512, 100, 600
PATH = "/v1/completions"
BEGUN = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 65536\r\n\r\n"


@pytest.fixture
async def stage(running_envoy: Any) -> AsyncIterator[Any]:
    """`await stage("--flag=value", ...)`: the Envoy before a picker and a worker that says how long a body was."""
    async with AsyncExitStack() as stack:

        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=str(len(await request.read())))

        async def staged(*flags: str, descriptors: int | None = None) -> Any:
            port = await started_worker(stack, PATH, answer)
            behind = picker_behind_envoy(running_envoy, [port], *flags, descriptors=descriptors)
            envoy, _ = await stack.enter_async_context(behind)
            return envoy

        yield staged


@contextlib.contextmanager
def connections(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            with contextlib.suppress(OSError):  # who is turned away at once was there, too
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=90))
                client.sendall(said)
                clients.append(client)
        yield clients


async def ask(envoy: Any) -> int:
    """The status, on a connection of its own."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client,
        client.post(envoy.url(PATH), json={"model": "m", "prompt": "Hello"}) as answer,
    ):
        return answer.status


async def served(envoy: Any) -> None:
    """Return once a request was served; those that are refused come again, as Retry-After asks of clients."""
    async with asyncio.timeout(90):
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                if await ask(envoy) == 200:
                    return
            await asyncio.sleep(0.05)


async def test_idle_connections_give_way(stage: Any) -> None:
    envoy = await stage(f"--max-connections={CONNECTIONS}", descriptors=DESCRIPTORS)
    with connections(envoy.ports["inference"], MANY):
        await served(envoy)
        assert [await ask(envoy) for _ in range(20)] == [200] * 20


async def test_begun_bodies_end_with_408_and_leave_the_probes_alone(stage: Any) -> None:
    flags = (f"--max-connections={CONNECTIONS}", "--request-timeout=3s")
    envoy = await stage(*flags, "--status-port=0", f"--admin-port={free_port()}")
    with connections(envoy.ports["inference"], CONNECTIONS, BEGUN.encode() + b"{") as begun:
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{envoy.ports['status']}/ready") as ready:
                assert ready.status == 200
            async with client.get(f"{envoy.admin}/ready") as ready:
                assert ready.status == 200
        await served(envoy)
        answers = [await asyncio.to_thread(one.recv, 100) for one in begun]
    assert {answer.split()[1] for answer in answers} == {b"408"}


async def test_a_slow_upload_is_served(stage: Any) -> None:
    envoy = await stage()
    reader, writer = await asyncio.open_connection("127.0.0.1", envoy.ports["inference"])
    body = json.dumps({"model": "m", "prompt": "x" * 65_000}).encode().ljust(65_536)
    writer.write(BEGUN.encode())
    for at in range(0, len(body), 1024):
        writer.write(body[at : at + 1024])
        await asyncio.sleep(0.02)
    async with asyncio.timeout(90):
        assert (await reader.readline()).split()[1] == b"200"
    writer.close()


async def test_a_full_heap_refuses_requests_and_not_the_probes(stage: Any) -> None:
    envoy = await stage("--max-heap=1Mi", "--status-port=0", f"--admin-port={free_port()}")

    async def refused() -> aiohttp.ClientResponse | None:
        async with client.post(envoy.url(PATH), json={"model": "m", "prompt": "Hello"}) as answer:
            await answer.read()
            return answer if answer.status == 503 else None

    async with asyncio.timeout(90), aiohttp.ClientSession() as client:
        while (answer := await refused()) is None:
            await asyncio.sleep(0.05)
        assert answer.headers["retry-after"] == "1"
        assert answer.content_type == "application/json"
        error = (await answer.json())["error"]
        assert (error["type"], error["code"]) == ("server_error", "proxy_overloaded")
        async with client.get(f"http://127.0.0.1:{envoy.ports['status']}/ready") as ready:
            assert ready.status == 200
