"""Sends repeated GETs to one host over one persistent HTTP/1.1 connection.

With a general HTTP client, most of the cost of such a small GET would be the client (benchmarks/README.md, "scraping").
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeAlias

from adsum.http1.protocol import ClientConnection
from adsum.http1.response import HttpResponse, IncompleteResponseError, ResponseError, ResponseReader

HostPort: TypeAlias = tuple[str, int]


class KeptConnection:
    """Sends one request at a time to one host, and reconnects if the server closed the connection meanwhile.

    `tls`: True uses Python's default context, None plain text. `buffer` may be shared by all connections of one event
    loop.
    """

    def __init__(self, host_port: HostPort, buffer: bytearray, *, tls: ssl.SSLContext | bool | None) -> None:
        self._host_port = host_port
        self._buffer = memoryview(buffer)
        self._tls = tls
        self._connection: ClientConnection | None = None
        self._closed = False
        self.connected = False
        """Whether the last request had a connection, kept or new."""
        self.on_lost: Callable[[Exception | None], object] | None = None
        """Called when the peer ends the idle connection: with the error of a reset, with None if it closed it in order."""
        self.on_deadline: Callable[[], float | None] | None = None
        """As that of a `ClientConnection`. A connection has it from its beginning."""

    @property
    def lost(self) -> bool:
        """Whether the peer ended a connection that it had agreed to keep."""
        return self._connection is not None and not self._connection.open

    @property
    def open(self) -> bool:
        """Whether the connection is open, so that the next request can use it."""
        return self._connection is not None and self._connection.open

    async def send(
        self,
        request: bytes,
        new_reader: Callable[[], ResponseReader],
        deadline: float,
        on_connected: Callable[[], object] | None = None,
    ) -> HttpResponse:
        """The response. Raises ResponseError, OSError, or TimeoutError at `deadline` (on the loop's clock).

        `on_connected` is called after a new connection was established.
        """
        kept = self._connection
        self.connected = kept is not None and kept.open
        if kept is not None and kept.open:
            try:
                return await self._send_over(kept, request, new_reader(), deadline)
            except TimeoutError:
                raise
            except (OSError, ResponseError):
                if kept.received_any or self._closed:
                    raise
                # The server closed the idle connection at about the time of our request, which says nothing of its
                # health. No byte of a response came, so an idempotent request may be sent again (RFC 9112 §9.3.1).
                self.connected = False
        async with asyncio.timeout_at(deadline):
            connection = await self._connect()
        self.connected = True
        if self._closed:
            connection.abort()
            raise IncompleteResponseError("the connection was closed by this process")
        if on_connected is not None:
            on_connected()
        return await self._send_over(connection, request, new_reader(), deadline)

    async def connect(self, deadline: float) -> None:
        """Open the connection for the next request, unless it is open. Raises OSError, or TimeoutError at `deadline`."""
        if not self.open:
            self._connection = None
            async with asyncio.timeout_at(deadline):
                self._connection = await self._connect()

    def time_out(self) -> None:
        """The running request, if it has a connection, has reached its deadline."""
        if self._connection is not None:
            self._connection.time_out()

    def abort(self) -> None:
        """Abort the connection and its request; a later request opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Abort the connection for good: the running request fails, and so do later ones."""
        self._closed = True
        self.abort()

    async def _connect(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        host, port = self._host_port
        _, connection = await loop.create_connection(
            lambda: ClientConnection(self._buffer), host, port, ssl=self._tls
        )
        connection.on_lost, connection.on_deadline = self._tell_lost, self.on_deadline
        return connection

    def _tell_lost(self, error: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost(error)

    async def _send_over(
        self, connection: ClientConnection, request: bytes, reader: ResponseReader, deadline: float
    ) -> HttpResponse:
        self._connection = connection
        reusable = False
        try:
            response = await connection.send(request, reader, deadline)
            reusable = response.reusable
            return response
        finally:
            if not reusable:
                self.abort()
