"""GETs over persistent connections, against servers that misbehave."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from discovery import Instance, MetadataUnavailableError, WorkerUnreachableError
from discovery.metadata.connections import WorkerConnections
from tests.in_time import TooLateError, with_more_time

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[Instance]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield Instance("w", "prod", "decode", "127.0.0.1", server.sockets[0].getsockname()[1], "one")
    finally:
        server.close()


@asynccontextmanager
async def connecting(token: str | None = None) -> AsyncIterator[WorkerConnections]:
    connections = WorkerConnections(ssl_context=None, token=token)
    try:
        yield connections
    finally:
        await connections.aclose()


async def test_requests_in_turn_share_a_connection_and_concurrent_ones_do_not() -> None:
    heads: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append([])
        while True:
            heads[-1].append(await reader.readuntil(b"\r\n\r\n"))
            await asyncio.sleep(0.05)
            writer.write(EMPTY)

    async with serving(serve) as worker, connecting("s3cret") as connections:
        for _ in range(3):
            answer = await connections.get(worker, "/metadata", {"Prefer": "wait=2"}, 20)
            assert (answer.status, bytes(answer.body)) == (200, b"{}")
        assert len(heads) == 1
        assert heads[0][0].decode().split("\r\n")[:2] == [
            "GET /metadata HTTP/1.1",
            f"Host: {worker.authority}",
        ]
        assert b"\r\nAuthorization: Bearer s3cret\r\n" in heads[0][0]
        assert heads[0][0].endswith(b"\r\nPrefer: wait=2\r\n\r\n")
        await asyncio.gather(*(connections.get(worker, "/health", {}, 20) for _ in range(2)))
        assert sorted(map(len, heads)) == [1, 4]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", "more than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "encoded"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "header fields take more than"),
    ],
)
async def test_an_invalid_answer_shows_that_the_port_is_open(said: bytes, reason: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await reader.read()

    async with serving(serve) as worker, connecting() as connections:
        with pytest.raises(MetadataUnavailableError, match=reason) as caught:
            await connections.get(worker, "/metadata", {}, 20)
    assert caught.value.connected
    assert not isinstance(caught.value, WorkerUnreachableError)


@with_more_time(300)
async def test_refused_reset_and_silent_are_distinguished(ms: int) -> None:
    heard = asyncio.Event()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        heard.set()
        await reader.read()

    seen: list[tuple[bool, bool]] = []
    async with serving(cut) as refused:
        pass
    async with serving(cut) as cutting, serving(silent) as hung, connecting() as connections:
        for worker, seconds in ((refused, 60.0), (cutting, 60.0), (hung, ms / 1000)):
            with pytest.raises(WorkerUnreachableError) as caught:
                await connections.get(worker, "/metadata", {}, seconds)
            seen.append((caught.value.connected, caught.value.silent))
        if not heard.is_set():
            raise TooLateError
    assert seen == [(False, False), (True, False), (True, True)]


async def test_closing_fails_requests_in_flight_and_closes_all_connections() -> None:
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()

    connections = WorkerConnections(ssl_context=None, token=None)
    async with serving(silent) as worker:
        under_way = asyncio.create_task(connections.get(worker, "/metadata", {}, 20))
        async with asyncio.timeout(90):
            await arrived.wait()
        await connections.aclose()
        async with asyncio.timeout(90):
            with pytest.raises(WorkerUnreachableError):
                await under_way
        with pytest.raises(MetadataUnavailableError, match="this discovery is closed"):
            await connections.get(worker, "/metadata", {}, 20)
    gc.collect()  # a transport that was left open would warn, which is an error here


def test_a_token_that_is_not_valid_in_a_header_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="the bearer token has a character") as caught:
        WorkerConnections(ssl_context=None, token="s3cret\r\nX: 1")
    assert "s3cret" not in str(caught.value)
