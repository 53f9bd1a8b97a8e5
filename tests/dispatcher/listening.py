"""A target over real sockets that handles each connection as a test says, byte for byte."""

import asyncio
import fcntl
import socket
import ssl
import termios
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

PATH = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LARGE = 10 * 1024 * 1024
"""Bytes of the largest body that a queue takes."""


@dataclass
class Listening:
    """`heads`: of every request, in the order in which they came; `connections`: how many there were."""

    port: int
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """The test has ended."""


Serve = Callable[[Listening, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(
    serve: Serve, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listening]:
    """`serve` has each connection to itself; it is closed afterwards."""
    serving: list[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        serving.append((asyncio.current_task(), writer))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(seen, reader, writer)
        writer.close()

    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        seen = Listening(bound.getsockname()[1])
        async with await asyncio.start_server(connection, sock=bound, ssl=tls):
            yield seen
            seen.over.set()
            for task, writer in serving:
                if not writer.is_closing():
                    writer.transport.abort()
                if task is not None:
                    await asyncio.wait([task])


async def delivered(writer: asyncio.StreamWriter) -> None:
    """All that was written is in the socket of the peer, whose turn it was to read it: it shares our loop."""
    waiting = array("i", [1])
    while waiting[0]:
        fcntl.ioctl(writer.get_extra_info("socket"), termios.TIOCOUTQ, waiting)
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)


async def request(seen: Listening, reader: asyncio.StreamReader) -> bytes:
    """The body of the next one."""
    head = await reader.readuntil(b"\r\n\r\n")
    seen.heads.append(head)
    size = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return await reader.readexactly(int(size.partition(b":")[2]))


async def ok(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one request after the other."""
    while True:
        await request(seen, reader)
        writer.write(OK)
