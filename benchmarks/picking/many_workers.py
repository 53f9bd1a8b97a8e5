"""`python -m benchmarks.picking.many_workers COUNT [alike]`: COUNT workers in one process; prints their ports.

They have a metrics page, no metadata, and answer each POST at once. Their KV caches are filled differently, unless
all are to be alike, as in a pool where nothing runs.
"""

import asyncio
import functools
import re
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
    def __init__(self, kv_usage: float) -> None:
        self._read = b""
        self._kv_usage = kv_usage

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
        if not head.startswith(b"GET /metrics "):
            return _NOTHING
        said = re.sub(rb"(vllm:kv_cache_usage_perc{.*}) .*", rb"\1 %f" % self._kv_usage, _PAGE)
        return _METRICS % (len(said), said)


def _end(read: bytes, body: int, head: bytes) -> int:
    """Returns where the request ends whose body begins at `body`; 0 if that is not known yet."""
    if b"transfer-encoding: chunked" in head:
        return read.find(_LAST_CHUNK, body) + len(_LAST_CHUNK) if _LAST_CHUNK in read[body:] else 0
    at = head.find(b"content-length:")
    return body + (int(head[at + 15 :].split(b"\r\n", 1)[0]) if at > 0 else 0)


async def main(count: int, *, alike: bool) -> None:
    """Serves until standard input ends."""
    loop = asyncio.get_running_loop()
    usage = [0.0 if alike else 0.1 + 0.8 * (number * 37 % count) / count for number in range(count)]
    servers = [await loop.create_server(functools.partial(_Worker, share), "127.0.0.1", 0) for share in usage]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), alike="alike" in sys.argv))
