"""A pool of persistent HTTP/1.1 connections to one host, as many as there are concurrent requests."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeAlias

import aiohappyeyeballs

from adsum.http1.connection import BUFFER_SIZE, ClientConnection, HostPort
from adsum.http1.response import HttpResponse, IncompleteResponseError, ResponseError, ResponseReader

CONNECT_TIMEOUT: Final = 10.0
"""Seconds."""
KEEPALIVE_EXPIRY: Final = 30.0
"""Seconds after which an idle connection is not reused: a NAT or load balancer on the path may have dropped its state."""
RESEND_WITHIN: Final = 1.0
"""Seconds after the request was written within which a lost connection is taken for one that was closed while idle."""
_ATTEMPT_DELAY: Final = 0.25
"""Seconds after which the next address is tried concurrently: the Connection Attempt Delay of RFC 8305 §5."""

_AddrInfos: TypeAlias = list[Any]
"""The result of `getaddrinfo`."""


class NotConnectedError(OSError):
    """No connection was established. `__cause__` has the reason, except after a time-out."""


class ConnectionPool:
    """Connections to one host; must be closed. `tls` None: plain text. Times are in seconds.

    Uses no proxy and follows no redirects. The caller limits the number of concurrent requests.
    """

    def __init__(
        self,
        host_port: HostPort,
        *,
        tls: ssl.SSLContext | None,
        connect_timeout: float = CONNECT_TIMEOUT,
        keepalive_expiry: float = KEEPALIVE_EXPIRY,
        resend_within: float = RESEND_WITHIN,
    ) -> None:
        self._host_port = host_port
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._keepalive_expiry = keepalive_expiry
        self._resend_within = resend_within
        self._buffer = memoryview(bytearray(BUFFER_SIZE))
        self._idle: deque[tuple[ClientConnection, float]] = deque()
        self._busy: set[ClientConnection] = set()
        self._lookups = count()
        self._lookup: asyncio.Task[_AddrInfos] | None = None
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(
        self,
        head: bytes,
        body: bytes,
        new_reader: Callable[[], ResponseReader],
        on_connection: Callable[[ClientConnection], object] | None = None,
        deadline: float | None = None,
    ) -> HttpResponse:
        """The response to a request. `head`: the request line and fields, without the blank line. `on_connection`: called
        with the connection before the request goes over it. `deadline`: on the loop's clock; from then on TimeoutError, or
        NotConnectedError where there is no connection yet. One timer: cheaper than `asyncio.timeout`.

        If a reused connection ends soon and before any byte of a response, the server closed it while it was idle: the
        request is sent once more, on a new connection that is closed afterwards. If it ends later, the server was at work.
        Cancellation aborts the connection. Raises NotConnectedError, ResponseError, or OSError if the connection breaks.
        """
        kept = self._take_idle()
        if kept is not None:
            loop = asyncio.get_running_loop()
            latest = loop.time() + self._resend_within
            if on_connection is not None:
                on_connection(kept)
            try:
                return await self._send_over(kept, head + b"\r\n", body, new_reader(), deadline)
            except (OSError, ResponseError) as error:
                is_late = loop.time() > latest or (isinstance(error, TimeoutError) and not error.errno)
                if kept.received_any or self._closed or is_late:
                    raise
            head += b"Connection: close\r\n"
        connection = await self._connect(deadline)
        if on_connection is not None:
            on_connection(connection)
        return await self._send_over(connection, head + b"\r\n", body, new_reader(), deadline)

    async def aclose(self) -> None:
        """Abort all connections; running requests raise IncompleteResponseError."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        if self._lookup is not None:
            self._lookup.cancel()
        for connection in (*self._busy, *(idle for idle, _ in self._idle)):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next iteration of the loop

    async def _send_over(
        self,
        connection: ClientConnection,
        head: bytes,
        body: bytes,
        reader: ResponseReader,
        deadline: float | None,
    ) -> HttpResponse:
        self._busy.add(connection)
        keep = False
        try:
            response = await connection.send(head, reader, deadline, body)
            keep = response.reusable and connection.sent_all and not self._closed
            return response
        finally:
            self._busy.discard(connection)
            if keep:
                self._keep(connection)
            else:
                connection.abort()

    def _take_idle(self) -> ClientConnection | None:
        """The connection that is idle for longest: round robin, so that each server behind the host gets its share."""
        oldest = asyncio.get_running_loop().time() - self._keepalive_expiry
        while self._idle:
            connection, since = self._idle.popleft()
            if connection.open and since > oldest:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._expiry_timer is None:
            self._expiry_timer = loop.call_later(self._keepalive_expiry, self._close_expired)

    def _close_expired(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle and (
            self._idle[0][1] <= loop.time() - self._keepalive_expiry or not self._idle[0][0].open
        ):
            self._idle.popleft()[0].abort()
        self._expiry_timer = (
            loop.call_later(self._keepalive_expiry, self._close_expired) if self._idle else None
        )

    async def _connect(self, deadline: float | None) -> ClientConnection:
        """Raises NotConnectedError, or IncompleteResponseError if the pool is closed."""
        seconds = self._connect_timeout
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connect_to(await self._resolve())
        except (OSError, UnicodeError) as error:
            late = isinstance(error, TimeoutError) and not error.errno
            text = f"no connection within {seconds:.3g} s" if late else "no connection"
            raise NotConnectedError(text) from (None if late else error)
        if self._closed:
            connection.abort()
            raise IncompleteResponseError("the connection was closed by this process")
        return connection

    async def _connect_to(self, addresses: _AddrInfos) -> ClientConnection:
        connected = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_ATTEMPT_DELAY)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(self._buffer),
            sock=connected,
            ssl=self._tls,
            server_hostname=self._host_port[0] if self._tls else None,
        )
        return connection

    async def _resolve(self) -> _AddrInfos:
        """The host's addresses, rotated so that each connection tries another one first. Concurrent connections share one
        lookup.
        """
        if self._lookup is None:
            host, port = self._host_port
            loop = asyncio.get_running_loop()
            self._lookup = loop.create_task(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            self._lookup.add_done_callback(self._looked_up)
        lookup = self._lookup
        try:
            found = await asyncio.shield(lookup)
        except asyncio.CancelledError:
            if self._closed and lookup.cancelled():
                raise IncompleteResponseError("the connection was closed by this process") from None
            raise
        first = next(self._lookups) % len(found)
        return found[first:] + found[:first]

    def _looked_up(self, lookup: "asyncio.Task[_AddrInfos]") -> None:
        self._lookup = None
        if not lookup.cancelled():
            lookup.exception()  # its waiters may all be cancelled: mark the error as retrieved
