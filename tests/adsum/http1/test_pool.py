"""Kept connections to one place, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from adsum.http1.pool import ConnectionPool, NotConnectedError
from adsum.http1.response import IncompleteResponseError, ResponseReader
from tests.eventually import eventually
from tests.open_connections import connected
from tests.raw_server import raw_server

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"

read = partial(ResponseReader, 1000)


@asynccontextmanager
async def counting() -> AsyncIterator[int]:
    """Answers with the number of the connection; yields its port."""
    numbers = iter(range(100))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = b"%02d" % next(numbers)
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + number)

    async with raw_server(serve) as port:
        yield port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Of a listener that takes no more connections: whoever connects waits."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def ask(pool: ConnectionPool) -> bytes:
    return bytes((await pool.send(HEAD, b"", read)).body)


async def test_idle_connections_serve_in_turn() -> None:
    async with counting() as port:
        pool = ConnectionPool(("127.0.0.1", port), tls=None)
        assert sorted(await asyncio.gather(ask(pool), ask(pool), ask(pool))) == [b"00", b"01", b"02"]
        turns = [await ask(pool) for _ in range(6)]
        assert turns[:3] == turns[3:]
        assert sorted(turns[:3]) == [b"00", b"01", b"02"]
        await pool.aclose()


async def test_a_connection_that_nobody_uses_is_closed() -> None:
    async with counting() as port:
        pool = ConnectionPool(("127.0.0.1", port), tls=None, keepalive_expiry=0.05)
        assert await ask(pool) == b"00"
        await eventually(lambda: not connected(port))
        assert await ask(pool) == b"01"
        await pool.aclose()


async def test_a_connection_that_was_idle_for_too_long_is_not_used() -> None:
    """Whether or not its timer has closed it."""
    async with counting() as port:
        pool = ConnectionPool(("127.0.0.1", port), tls=None, keepalive_expiry=0)
        assert [await ask(pool) for _ in range(3)] == [b"00", b"01", b"02"]
        await pool.aclose()


async def test_closing_ends_connections_that_are_idle_or_asked() -> None:
    async with counting() as port:
        pool = ConnectionPool(("127.0.0.1", port), tls=None)
        await asyncio.gather(ask(pool), ask(pool))
        asking = asyncio.create_task(pool.send(HEAD.replace(b"\r\n", b"\n"), b"", read))  # never whole
        await asyncio.sleep(0)
        await pool.aclose()
        with pytest.raises(IncompleteResponseError):
            await asking
        await eventually(lambda: not connected(port))


async def test_closing_ends_a_lookup() -> None:
    pool = ConnectionPool(("nobody.invalid", 80), tls=None)
    asking = asyncio.create_task(ask(pool))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await pool.aclose()
    with pytest.raises((IncompleteResponseError, NotConnectedError)):
        await asking


async def test_nobody_connects_for_longer_than_allowed(silent_port: int) -> None:
    pool = ConnectionPool(("127.0.0.1", silent_port), tls=None, connect_timeout=0.05)
    with pytest.raises(NotConnectedError, match=r"no connection within 0\.05 s") as raised:
        await ask(pool)
    assert raised.value.__cause__ is None
    over = asyncio.get_running_loop().time() - 1
    with pytest.raises(NotConnectedError, match="no connection within 0 s"):
        await pool.send(HEAD, b"", read, deadline=over)
    await pool.aclose()


@pytest.mark.parametrize(
    ("place", "cause"), [(("127.0.0.1", 1), ConnectionError), (("nobody.invalid", 80), OSError)]
)
async def test_why_there_is_no_connection(place: tuple[str, int], cause: type[OSError]) -> None:
    pool = ConnectionPool(place, tls=None)
    with pytest.raises(NotConnectedError) as raised:
        await ask(pool)
    assert isinstance(raised.value.__cause__, cause)
    await pool.aclose()


async def test_many_connect_by_one_name_at_the_same_time() -> None:
    async with counting() as port:
        pool = ConnectionPool(("localhost", port), tls=None)
        assert len(set(await asyncio.gather(*(ask(pool) for _ in range(20))))) == 20
        await pool.aclose()


async def test_one_who_gives_up_takes_nobody_with_them() -> None:
    """Of those who share a lookup."""
    async with counting() as port:
        pool = ConnectionPool(("localhost", port), tls=None)
        one, other = asyncio.create_task(ask(pool)), asyncio.create_task(ask(pool))
        await asyncio.sleep(0)
        one.cancel()
        assert await other in (b"00", b"01")
        assert one.cancelled()
        await pool.aclose()


@pytest.mark.parametrize(("resend_within", "asked"), [(90, 3), (-1, 2)])
async def test_only_a_connection_that_ended_soon_is_taken_for_one_closed_while_idle(
    resend_within: float, asked: int
) -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            requests += 1
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        place = ("127.0.0.1", server.sockets[0].getsockname()[1])
        pool = ConnectionPool(place, tls=None, resend_within=resend_within)
        await ask(pool)
        if resend_within > 0:
            assert await ask(pool) == b"ok"
        else:
            with pytest.raises(IncompleteResponseError):
                await ask(pool)
        assert requests == asked
        await pool.aclose()
