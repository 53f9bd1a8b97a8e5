"""Asks one worker for one page, again and again, over one kept connection.

A look at a metrics page is one GET, known beforehand, of somebody who is asked up to twenty times a second: with a
general HTTP client most of its price would be the client (benchmarks/README.md, "scraping").
"""

import asyncio
import os
import socket
import ssl
from typing import Final, cast

from yarl import URL

from epp.http_answer import Answer, AnswerError, AnswerReader


class PageError(Exception):
    """The page was not to be had; the text is the short cause."""


class PageClient:
    """One page of one worker. `limit`: bytes of the page; `timeout`: seconds for one whole answer.

    `tls` is for a URL whose scheme is https; None: what Python verifies by default. `buffer` may be shared by all
    clients of one event loop.
    """

    def __init__(
        self, url: URL, buffer: bytearray, *, tls: ssl.SSLContext | None, timeout: float, limit: int
    ) -> None:
        self._place = (url.host or "", url.port or 0)
        self._buffer = memoryview(buffer)
        self._tls: ssl.SSLContext | bool | None = (tls or True) if url.scheme == "https" else None
        self._timeout = timeout
        self._limit = limit
        self._request = _REQUEST.format(url.raw_path_qs, url.host_port_subcomponent).encode("ascii")
        self._connection: _Connection | None = None

    async def get(self) -> bytearray:
        """The page; raises PageError when there is none, or not in time."""
        try:
            answer = await self._ask(asyncio.get_running_loop().time() + self._timeout)
        except TimeoutError as error:
            raise PageError(f"no whole answer within {self._timeout:g} s") from error
        except (OSError, AnswerError) as error:
            raise PageError(_in_words(error)) from error
        if answer.status != 200:
            raise PageError(f"status {answer.status}, expected 200")
        return answer.body

    def close(self) -> None:
        """Drop the connection; a later `get` makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _ask(self, until: float) -> Answer:
        kept = self._connection
        if kept is not None and kept.open:
            try:
                return await self._ask_over(kept, until)
            except TimeoutError:
                raise
            except (OSError, AnswerError):
                if kept.heard:
                    raise
                # it was closed while nobody looked, which says nothing of the worker
        async with asyncio.timeout_at(until):
            connection = await self._connect()
        return await self._ask_over(connection, until)

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._buffer), *self._place, ssl=self._tls
        )
        return connection

    async def _ask_over(self, connection: "_Connection", until: float) -> Answer:
        self._connection = connection
        reusable = False
        try:
            answer = await connection.ask(self._request, AnswerReader(self._limit), until)
            reusable = answer.reusable
            return answer
        finally:
            if not reusable:
                self.close()


def _in_words(error: OSError | AnswerError) -> str:
    """What the system says of a connection that failed, without its number; TLS and resolvers number otherwise."""
    if isinstance(error, ssl.SSLError | socket.gaierror | AnswerError) or not error.errno:
        return str(error) or type(error).__name__
    return os.strerror(error.errno)


_REQUEST: Final = "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: text/plain\r\nAccept-Encoding: identity\r\nUser-Agent: adsum\r\n\r\n"


class _Connection(asyncio.BufferedProtocol):
    """One question at a time; `heard` says whether any byte came back for the last one.

    `buffer` is for what comes, and may be everybody's: it is read out before anybody else can write to it. A new
    one for each arrival would be the dearest part of a look.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.open = False
        self.heard = False
        self._buffer = buffer
        self._transport: asyncio.Transport
        self._reader: AnswerReader
        self._answer: asyncio.Future[Answer] | None = None

    async def ask(self, request: bytes, reader: AnswerReader, until: float) -> Answer:
        """The answer; raises AnswerError, OSError when the connection breaks, TimeoutError at `until` (loop's)."""
        loop = asyncio.get_running_loop()
        self._reader, self.heard = reader, False
        self._answer = loop.create_future()
        deadline = loop.call_at(until, self._give_up)
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            deadline.cancel()
            self._answer = None

    def _give_up(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(TimeoutError())

    def abort(self) -> None:
        """Close it at once."""
        self.open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nobody asked
            return
        self.heard = True
        try:
            answer = self._reader.feed(self._buffer[:nbytes])
        except AnswerError as error:
            self._answer.set_exception(error)
        else:
            if answer is not None:
                self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer is None or self._answer.done():
            return
        try:
            self._answer.set_result(self._reader.end())
        except AnswerError as error:
            self._answer.set_exception(exc or error)
