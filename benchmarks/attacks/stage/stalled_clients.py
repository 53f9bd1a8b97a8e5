"""Clients that send a request body without its last 100 bytes and keep the connection open."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_HEAD = (
    "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-dispatch: enqueue\r\n"
)


@contextlib.asynccontextmanager
async def stalled_clients(address: str, count: int, size: int) -> AsyncIterator[None]:
    """Each client reconnects 5 s after its connection was closed."""
    host, _, port = address.rpartition(":")
    body = bytes(size - 100)

    async def upload_all_but_the_end() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(f"{_HEAD}content-length: {size}\r\n\r\n".encode() + body)
                    await writer.drain()
                    await reader.read(1)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(5.0)

    clients = [asyncio.create_task(upload_all_but_the_end()) for _ in range(count)]
    try:
        yield
    finally:
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)
