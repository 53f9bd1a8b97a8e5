"""Reads a streamed answer as cheaply as it can: the reader shares the machine with what it measures."""

import asyncio
import time
from typing import Final

HEAD_END: Final = b"\r\n\r\n"


class StreamedAnswer(asyncio.Protocol):
    """One request over one connection, and its answer until that ends; nothing is parsed while bytes come.

    `first`: when a byte of the body came, `ended`: when the connection ended, both in seconds of the monotonic clock.
    """

    def __init__(self, request: bytes) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.first = 0.0
        self._request = request
        self._pieces: list[bytes] = []
        self._head_is_in = False

    @property
    def received(self) -> bytes:
        return b"".join(self._pieces)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if self.first:
            return
        if not self._head_is_in:
            self._head_is_in = (end := self.received.find(HEAD_END)) >= 0
            if not self._head_is_in or len(self.received) == end + len(HEAD_END):
                return
        self.first = time.monotonic()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(time.monotonic())
