"""`python -m benchmarks.noop_gateway`: answers every POST with JSON at once; prints its port."""

import argparse
import asyncio
import ssl
from functools import partial
from pathlib import Path

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._left += data
        while (end := self._left.find(b"\r\n\r\n")) >= 0:
            length = self._left[:end].lower().partition(b"\r\ncontent-length:")[2]
            size = int(length.partition(b"\r")[0])
            if len(self._left) < end + 4 + size:
                return
            self._left = self._left[end + 4 + size :]
            self._transport.write(self._answer)


async def main(size: int = 2, certificates: Path | None = None) -> None:
    """`size`: bytes of each answer, at least 2. `certificates`: a folder with tls.crt and tls.key."""
    tls = None
    if certificates is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
    answer = _HEAD % size + b"{" + b" " * (size - 2) + b"}"
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(_Connection, answer), "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noop_gateway", description=__doc__)
    parser.add_argument("--size", type=int, default=2, metavar="BYTES", help="of each answer (default: 2)")
    parser.add_argument(
        "--cert-path", type=Path, metavar="FOLDER", help="tls.crt and tls.key: answer over TLS"
    )
    given = parser.parse_args()
    asyncio.run(main(given.size, given.cert_path))
