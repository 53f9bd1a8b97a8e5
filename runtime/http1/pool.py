"""Kept HTTP/1.1 connections to one place, as many as there are requests on their way."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeAlias

import aiohappyeyeballs

from runtime.http1.answer import AnswerCutError, AnswerError, AnswerReader, HttpAnswer
from runtime.http1.connection import Place
from runtime.http1.protocol import BUFFER, ClientConnection

CONNECT_TIMEOUT: Final = 10.0
"""Seconds."""
MOST_IDLE: Final = 30.0
"""Seconds after which a kept connection is not trusted any more: something on the way may have forgotten it."""
_ATTEMPT_DELAY: Final = 0.25
"""Seconds after which the next address is tried beside one that is silent (RFC 8305 §5)."""

_Addresses: TypeAlias = list[Any]
"""As `getaddrinfo` says them."""


class NotConnectedError(OSError):
    """There is no connection to the place; `__cause__` says why, but for one that was not made in time."""


class ConnectionPool:
    """Asks one place; must be closed. `tls`: None is plain text; times in seconds.

    Proxies are not asked, redirects not followed. The caller bounds how many requests are on their way.
    """

    def __init__(
        self,
        place: Place,
        *,
        tls: ssl.SSLContext | None,
        connect_timeout: float = CONNECT_TIMEOUT,
        most_idle: float = MOST_IDLE,
    ) -> None:
        self._place = place
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._most_idle = most_idle
        self._buffer = memoryview(bytearray(BUFFER))
        self._idle: deque[tuple[ClientConnection, float]] = deque()
        self._busy: set[ClientConnection] = set()
        self._turns = count()
        self._lookup: asyncio.Task[_Addresses] | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, head: bytes, body: bytes, read: Callable[[], AnswerReader]) -> HttpAnswer:
        """The answer to a request; `head`: all of its head but the blank line. Cancelled: its connection is closed.

        A kept connection that the other side closed meanwhile is not its answer: the request is sent once more, on a
        connection of its own. Raises NotConnectedError, AnswerError, and OSError where the connection breaks.
        """
        kept = self._longest_idle()
        if kept is not None:
            try:
                return await self._ask_over(kept, head + b"\r\n", body, read())
            except (OSError, AnswerError):
                if kept.heard or self._closed:
                    raise
            head += b"Connection: close\r\n"
        return await self._ask_over(await self._connect(), head + b"\r\n", body, read())

    async def aclose(self) -> None:
        """Whoever waits for an answer gets AnswerCutError."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._lookup is not None:
            self._lookup.cancel()
        for connection in (*self._busy, *(idle for idle, _ in self._idle)):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes what was aborted in its next turn

    async def _ask_over(
        self, connection: ClientConnection, head: bytes, body: bytes, reader: AnswerReader
    ) -> HttpAnswer:
        self._busy.add(connection)
        keep = False
        try:
            answer = await connection.ask(head, reader, body=body)
            keep = answer.reusable and connection.wrote_all and not self._closed
            return answer
        finally:
            self._busy.discard(connection)
            if keep:
                self._keep(connection)
            else:
                connection.abort()

    def _longest_idle(self) -> ClientConnection | None:
        """In turn, so that every server behind the place gets its share."""
        oldest = asyncio.get_running_loop().time() - self._most_idle
        while self._idle:
            connection, since = self._idle.popleft()
            if connection.open and since > oldest:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._most_idle, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle and (self._idle[0][1] <= loop.time() - self._most_idle or not self._idle[0][0].open):
            self._idle.popleft()[0].abort()
        self._sweeping = loop.call_later(self._most_idle, self._sweep) if self._idle else None

    async def _connect(self) -> ClientConnection:
        """Raises NotConnectedError; AnswerCutError where the pool is closed."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._connect_to(await self._addresses())
        except (OSError, UnicodeError) as error:
            late = isinstance(error, TimeoutError) and not error.errno
            text = f"no connection within {self._connect_timeout:g} s" if late else "no connection"
            raise NotConnectedError(text) from (None if late else error)
        if self._closed:
            connection.abort()
            raise AnswerCutError("the connection was ended by us")
        return connection

    async def _connect_to(self, addresses: _Addresses) -> ClientConnection:
        connected = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_ATTEMPT_DELAY)
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(self._buffer),
            sock=connected,
            ssl=self._tls,
            server_hostname=self._place[0] if self._tls else None,
        )
        return connection

    async def _addresses(self) -> _Addresses:
        """Of the place; each connection begins with another one. Whoever connects at the same time shares the lookup."""
        if self._lookup is None:
            host, port = self._place
            loop = asyncio.get_running_loop()
            self._lookup = loop.create_task(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            self._lookup.add_done_callback(self._looked_up)
        lookup = self._lookup
        try:
            found = await asyncio.shield(lookup)
        except asyncio.CancelledError:
            if self._closed and lookup.cancelled():
                raise AnswerCutError("the connection was ended by us") from None
            raise
        first = next(self._turns) % len(found)
        return found[first:] + found[:first]

    def _looked_up(self, lookup: "asyncio.Task[_Addresses]") -> None:
        self._lookup = None
        if not lookup.cancelled():
            lookup.exception()  # whoever waited for it may be gone
