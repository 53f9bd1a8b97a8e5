"""`python -m benchmarks.noop_gateway`: answers every POST with `{}` at once; prints its port."""

import asyncio

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
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
            self._transport.write(_ANSWER)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
