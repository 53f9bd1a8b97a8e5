"""Kept HTTP/1.1 connections to one address, one request at a time on each.

A general client costs three times the processor time for each request; here it is most of what a dispatcher does.
"""

import asyncio
import ssl
import time
from types import TracebackType
from typing import Self

from dispatcher.http_response import MalformedError, Response, ResponseReader, TooLargeError

CONNECT_TIMEOUT = 10.0
"""Seconds."""
MOST_IDLE = 30.0
"""Seconds after which a kept connection is not trusted any more: something on the way may have forgotten it."""
_HAPPY_EYEBALLS = 0.25
"""Seconds until the other address family is tried too (RFC 8305)."""


class BrokenError(Exception):
    """The connection ended, or never was; `unheard`: before anything was answered."""

    def __init__(self, reason: str, *, unheard: bool = False) -> None:
        super().__init__(reason)
        self.unheard = unheard


class Connections:
    """An async context manager; left, all of them are closed."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, max_body: int) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._max_body = max_body
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = list(self._open)
        for connection in closing:
            connection.abort()
        if closing:
            await asyncio.wait([connection.closed for connection in closing])

    async def exchange(self, request: bytes) -> Response:
        """Send these bytes and read one response; raises BrokenError, MalformedError and TooLargeError.

        Cancelled: the connection is closed. A kept connection that the other side closed meanwhile is not its answer:
        the bytes are sent once more, on a new one.
        """
        if kept := self._kept():
            try:
                return await self._ask(kept, request)
            except BrokenError as error:
                if not error.unheard:
                    raise
        return await self._ask(await self._connect(), request)

    async def _ask(self, connection: "_Connection", request: bytes) -> Response:
        try:
            response = await connection.ask(request, self._max_body)
        except BaseException:
            connection.abort()
            raise
        if response.reusable and not connection.closed.done():
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()
        return response

    def _kept(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed.done() and time.monotonic() - connection.idle_since < MOST_IDLE:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop.create_future()),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    happy_eyeballs_delay=_HAPPY_EYEBALLS,
                )
        except TimeoutError as error:
            raise BrokenError(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except OSError as error:
            raise BrokenError(f"no connection: {error}") from error
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._forget(connection))
        return connection

    def _forget(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One socket; `closed` is done when it is."""

    def __init__(self, closed: asyncio.Future[None]) -> None:
        self.closed = closed
        self.idle_since = 0.0
        self._reader: ResponseReader | None = None
        self._answer: asyncio.Future[Response] | None = None

    async def ask(self, request: bytes, max_body: int) -> Response:
        if self.closed.done():
            raise BrokenError("the connection ended", unheard=True)
        answer: asyncio.Future[Response] = self.closed.get_loop().create_future()
        self._reader, self._answer = ResponseReader(max_body), answer
        self._transport.write(request)
        try:
            return await answer
        finally:
            self._reader = self._answer = None

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what create_connection makes
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._answer is None or self._answer.done():
            self._transport.abort()  # nobody asked
            return
        try:
            response = self._reader.feed(data)
        except (MalformedError, TooLargeError) as error:
            self._answer.set_exception(error)
            return
        if response is not None:
            self._answer.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reader is not None and self._answer is not None and not self._answer.done():
            try:
                self._answer.set_result(self._reader.end())
            except MalformedError as error:
                unheard = not self._reader.begun
                reason = f"{error}: {exc}" if exc else str(error)
                self._answer.set_exception(BrokenError(reason, unheard=unheard))
        if not self.closed.done():
            self.closed.set_result(None)
