"""`python -m benchmarks.picking.worker_ports COUNT`: COUNT workers in one process, one port each; prints the ports.

They have a metrics page, no metadata, and answer each POST at once.
"""

import asyncio
import sys
from typing import Final

from benchmarks.metrics_pages import page

_POSTED: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_NOTHING: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_PAGE: Final = page(1000)
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
"""Does not stand in what the benchmark sends."""
_METRICS: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n%s"
)


class _Worker(asyncio.Protocol):
    def __init__(self) -> None:
        self._read = b""
        self._metrics = _METRICS % (len(_PAGE), _PAGE)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (body := self._read.find(b"\r\n\r\n") + 4) > 3:
            head = self._read[:body].lower()
            end = _end(self._read, body, head)
            if not 0 < end <= len(self._read):
                return
            self._transport.write(self._answer(self._read[:body]))
            self._read = self._read[end:]

    def _answer(self, head: bytes) -> bytes:
        if head.startswith(b"POST "):
            return _POSTED
        return self._metrics if head.startswith(b"GET /metrics ") else _NOTHING


def _end(read: bytes, body: int, head: bytes) -> int:
    """Where a request ends whose body begins at `body`; 0 where that is not known yet."""
    if b"transfer-encoding: chunked" in head:
        return read.find(_LAST_CHUNK, body) + len(_LAST_CHUNK) if _LAST_CHUNK in read[body:] else 0
    at = head.find(b"content-length:")
    return body + (int(head[at + 15 :].split(b"\r\n", 1)[0]) if at > 0 else 0)


async def main(count: int) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_Worker, "127.0.0.1", 0) for _ in range(count)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
