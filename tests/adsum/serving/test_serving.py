"""Ports with bounds: connections, idleness, and what is said of them."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import web

from adsum.logs import LOG_INTERVAL, RateLimitedLog
from adsum.serving.acceptor import Acceptor, Connections
from adsum.serving.pages import ConnectionLimits, PageServer
from adsum.serving.sockets import listening_sockets
from tests.eventually import eventually
from tests.in_time import TooLateError, with_more_time

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Pages:
    """A server whose `/` is held until `go_on`."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.go_on = asyncio.Event()
        self.held = 0
        app = web.Application()
        app.router.add_get("/", self._answer)
        self._server = PageServer(app, listening_sockets("127.0.0.1", 0), "the port", limits)

    async def _answer(self, _: web.Request) -> web.Response:
        self.held += 1
        await self.go_on.wait()
        return web.Response(text="here")

    @property
    def port(self) -> int:
        return self._server.port

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Pages"]:
        await self._server.start()
        try:
            yield self
        finally:
            await self._server.aclose()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def read(reader: asyncio.StreamReader) -> bytes:
    """What comes; nothing where the connection is closed or reset."""
    async with asyncio.timeout(90):
        try:
            return await reader.read(1000)
        except ConnectionError:
            return b""


async def test_a_burst_of_idle_connections_keeps_no_newcomer_out() -> None:
    """All of them are in the backlog before the server's loop runs once: those that it accepted are not open yet."""
    with ExitStack() as stack:
        async with Pages(ConnectionLimits(4, 60.0, 0.1)).serving() as pages:
            for _ in range(40):
                idle = stack.enter_context(socket.create_connection(("127.0.0.1", pages.port)))
            idle.sendall(GET)
            pages.go_on.set()
            idle.setblocking(False)
            async with asyncio.timeout(90):
                answer = await asyncio.get_running_loop().sock_recv(idle, 1000)
    assert answer.startswith(b"HTTP/1.1 200")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    with suppress(ConnectionError):
        writer.write(GET)
        await writer.drain()
    return await read(reader)


@pytest.mark.parametrize("said", [b"", GET[:-2]], ids=["nothing", "half a request"])
async def test_who_sends_no_request_is_not_kept(said: bytes) -> None:
    async with (
        Pages(ConnectionLimits(idle_timeout=0.2)).serving() as pages,
        pages.client() as (reader, writer),
    ):
        writer.write(said)
        assert await read(reader) == b""


@with_more_time(100)
async def test_a_held_request_is_kept(ms: int) -> None:
    async with (
        Pages(ConnectionLimits(idle_timeout=ms / 1000)).serving() as pages,
        pages.client() as (reader, writer),
    ):
        writer.write(GET)
        await asyncio.sleep(5 * ms / 1000)
        pages.go_on.set()
        answer = await read(reader)
        if not pages.held:  # it came after the connection had been idle for too long
            raise TooLateError
        assert answer.startswith(b"HTTP/1.1 200")
        assert await read(reader) == b""


async def test_the_one_that_is_idle_for_longest_makes_room() -> None:
    async with AsyncExitStack() as stack:
        pages = await stack.enter_async_context(Pages(ConnectionLimits(max_connections=3)).serving())
        pages.go_on.set()
        first, second, third, fourth = [await stack.enter_async_context(pages.client()) for _ in range(4)]
        assert await read(first[0]) == b""
        for one in (second, third, fourth):
            assert (await ask(*one)).startswith(b"HTTP/1.1 200")


async def test_clients_that_do_not_read_keep_nobody_out() -> None:
    """Nor do they cost a client its idle connection that reads its answers."""
    asked = 0

    async def large(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(bytes(64 * 1024))

    async def small(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/large", large)
    app.router.add_get("/", small)
    server = PageServer(
        app, listening_sockets("127.0.0.1", 0), "the port", ConnectionLimits(4, shutdown_timeout=0.1)
    )
    await server.start()
    try:
        async with AsyncExitStack() as stack:

            def connect() -> socket.socket:
                return stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))

            def all_idle() -> bool:
                return all(one.idle_since is not None for one in server._connections.open)

            async def ask(client: socket.socket) -> bytes:
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(90):
                    await loop.sock_sendall(client, GET)
                    return await loop.sock_recv(client, 1000)

            reads = connect()
            reads.setblocking(False)
            assert (await ask(reads)).startswith(b"HTTP/1.1 200")
            for number in range(1, 13):
                connect().sendall(GET.replace(b"/ ", b"/large "))
                await eventually(lambda number=number: asked == number and all_idle())
            newcomer = connect()
            newcomer.setblocking(False)
            assert (await ask(newcomer)).startswith(b"HTTP/1.1 200")
            assert (await ask(reads)).startswith(b"HTTP/1.1 200")
    finally:
        await server.aclose()


async def test_where_none_is_idle_the_next_are_turned_away_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with AsyncExitStack() as stack:
        pages = await stack.enter_async_context(Pages(ConnectionLimits(max_connections=2)).serving())
        held = [await stack.enter_async_context(pages.client()) for _ in range(2)]
        for _, writer in held:
            writer.write(GET)
        await eventually(lambda: pages.held == 2)
        for _ in range(50):
            assert await ask(*await stack.enter_async_context(pages.client())) == b""
        pages.go_on.set()
        for reader, _ in held:
            assert (await read(reader)).startswith(b"HTTP/1.1 200")
    said = [record.getMessage() for record in caplog.records if record.name.startswith("adsum.serving")]
    assert said == ["the port: 2 connections are open and none is idle, others are closed"]


def test_a_cause_is_said_once_a_minute_with_how_often_it_came(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    said = RateLimitedLog(logging.getLogger("x"), lambda: now)
    for _ in range(1000):
        said.warning("a", "it is %s", "full")
    said.warning("b", "another")
    now = LOG_INTERVAL
    said.warning("a", "it is %s", "full")
    assert [record.getMessage() for record in caplog.records] == [
        "it is full",
        "another",
        "it is full; 999 more times since the last such line",
    ]


async def test_a_connection_that_is_accepted_while_the_port_closes_is_closed() -> None:
    [listening] = listening_sockets("127.0.0.1", 0)
    acceptor = Acceptor([listening], asyncio.Protocol, Connections(8, 60.0), name="the port")
    acceptor.start()
    with socket.create_connection(listening.getsockname()) as client:
        acceptor._accept(listening)  # its task begins in the loop's next iteration
        [accepted] = acceptor._waiting
        acceptor.close()
        assert accepted.fileno() == -1
        assert client.recv(1) == b""
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nauthorization: Bearer t0psecret\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nt0psecret\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nt0psecret",
    ],
)
async def test_what_is_no_http_is_refused_and_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Pages(ConnectionLimits()).serving() as pages, pages.client() as (reader, writer):
        writer.write(sent)
        assert (await read(reader)).split()[1] == b"400"
    assert "t0psecret" not in caplog.text
    assert "Traceback" not in caplog.text
