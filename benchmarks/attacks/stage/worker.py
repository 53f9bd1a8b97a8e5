"""A worker whose answers the attack defines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

HONEST = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.1\n"
"""The metrics page of an idle one."""
_ABSENT = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def answer(body: bytes, kind: str = "text/plain; version=0.0.4", status: str = "200 OK") -> bytes:
    """A whole HTTP/1.1 response."""
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@contextlib.asynccontextmanager
async def worker(pages: Mapping[str, bytes]) -> AsyncIterator[int]:
    """Yields its port on 127.0.0.1. `pages`: whole responses by path, read at each request; other paths are 404."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(pages.get(head.split(b" ", 2)[1].decode(errors="replace"), _ABSENT))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
