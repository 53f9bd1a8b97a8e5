"""One HTTP/1.1 client connection: the asyncio protocol that writes a request and reads its response, and a kept connection
for repeated GETs to one host.

With a general HTTP client, most of the cost of such a small GET would be the client (benchmarks/README.md, "scraping").
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from adsum.http1.response import HttpResponse, IncompleteResponseError, ResponseError, ResponseReader

BUFFER_SIZE: Final = 64 * 1024
"""Bytes of the receive buffer."""
_FIRST_WRITE_SIZE: Final = 64 * 1024
"""Bytes of a request's body that are written together with the head, in one system call and often one packet."""
_WRITE_SIZE: Final = 256 * 1024
"""Bytes of each further write."""


class ClientConnection(asyncio.BufferedProtocol):
    """One request at a time; `received_any` says whether any byte of the last response came.

    All connections of a loop may share `buffer`, because the loop fills it and calls `buffer_updated` for one of them at a
    time. A new buffer for each read would cost more than the rest of a small GET.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.open = False
        self.received_any = False
        self.on_lost: Callable[[Exception | None], object] | None = None
        """Called when the peer ends the connection between two requests; None: it closed it in order."""
        self.on_deadline: Callable[[], float | None] | None = None
        """Called at a request's deadline. Returns a later one, until which the request goes on, or None to give up."""
        self._buffer = buffer
        self._transport: asyncio.Transport
        self._reader: ResponseReader
        self._response: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = memoryview(b"")
        self._paused = False

    @property
    def sent_all(self) -> bool:
        """Whether the last request was written as a whole; a server may respond before it has read all of it."""
        return not self._unsent

    async def send(
        self, head: bytes, reader: ResponseReader, deadline: float | None = None, body: bytes = b""
    ) -> HttpResponse:
        """The response. Raises ResponseError, OSError if the connection breaks, TimeoutError at `deadline` (loop's clock).

        A caller that stops waiting must `abort`, or the response would be taken for the next request's.
        """
        loop = asyncio.get_running_loop()
        self._reader, self.received_any = reader, False
        self._response = loop.create_future()
        self._timer = None if deadline is None else loop.call_at(deadline, self.time_out)
        self._write(head, body)
        try:
            return await self._response
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._response = None

    def abort(self) -> None:
        """Close at once. transport.close() would first flush the rest of the request, which the peer may never read."""
        self.open = False
        self._transport.abort()

    def pause_reading(self) -> None:
        """Leave what the peer sends in the kernel: who gets the response is slower than the peer."""
        if self.open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.open:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._response is None or self._response.done():
            self.abort()  # unsolicited bytes would be taken for the next response (RFC 9112 §9.2)
            return
        self.received_any = True
        try:
            response = self._reader.feed(self._buffer[:nbytes])
        except ResponseError as error:
            self._response.set_exception(error)
        else:
            if response is not None:
                self._response.set_result(response)

    def eof_received(self) -> None:
        if self._unsent:
            self.abort()  # a peer that ends before it has read the request does not respond

    def connection_lost(self, exc: Exception | None) -> None:
        ended_by_peer = self.open
        self.open = False
        if self._response is None and ended_by_peer and self.on_lost is not None:
            self.on_lost(exc)
        if self._response is None or self._response.done():
            return
        try:
            response = self._reader.end()
        except ResponseError as error:
            self._response.set_exception(exc or error)
        else:
            if exc is not None:  # a reset is no end, also of a body without a length
                self._response.set_exception(exc)
            else:
                self._response.set_result(response)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write_more()

    def _write(self, head: bytes, body: bytes) -> None:
        self._transport.write(head + body[:_FIRST_WRITE_SIZE] if body else head)
        if len(body) > _FIRST_WRITE_SIZE:
            self._unsent = memoryview(body)[_FIRST_WRITE_SIZE:]
            self._write_more()

    def _write_more(self) -> None:
        """Write piece by piece: a transport copies what it cannot send, so one write would hold a large body twice."""
        if not self._unsent or self._paused or not self.open:
            return
        piece, self._unsent = self._unsent[:_WRITE_SIZE], self._unsent[_WRITE_SIZE:]
        self._transport.write(piece)
        # in the loop's next iteration, so that a fast peer does not starve other connections
        if not self._paused:
            asyncio.get_running_loop().call_soon(self._write_more)

    def time_out(self) -> None:
        """The running request, if any, has reached its deadline."""
        if self._response is None or self._response.done():
            return
        try:
            later = None if self.on_deadline is None else self.on_deadline()
        except Exception as error:  # noqa: BLE001  # raised to who waits: the loop would only log it, and the wait never end
            self._response.set_exception(error)
            return
        if later is None:
            self._response.set_exception(TimeoutError())
        else:
            self._timer = asyncio.get_running_loop().call_at(later, self.time_out)


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
