"""One kept HTTP/1.1 connection to one place, for whoever asks the same question again and again.

With a general HTTP client most of the price of such a question would be the client (benchmarks/README.md, "scraping").
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeAlias, cast

from runtime.http1.answer import AnswerCutError, AnswerError, AnswerReader, HttpAnswer

Place: TypeAlias = tuple[str, int]


class KeptConnection:
    """Asks one place, one question at a time; a connection that was closed meanwhile is made anew.

    `tls`: True is what Python verifies by default, None plain text. `buffer` may be shared by all connections of one
    event loop.
    """

    def __init__(self, place: Place, buffer: bytearray, *, tls: ssl.SSLContext | bool | None) -> None:
        self._place = place
        self._buffer = memoryview(buffer)
        self._tls = tls
        self._connection: _Connection | None = None
        self._ended = False
        self.connected = False
        """Whether the last question found somebody who listens."""

    @property
    def open(self) -> bool:
        """Whether the next question finds a connection."""
        return self._connection is not None and self._connection.open

    async def ask(
        self,
        request: bytes,
        read: Callable[[], AnswerReader],
        until: float,
        connected: Callable[[], object] | None = None,
    ) -> HttpAnswer:
        """The answer; raises AnswerError, OSError, TimeoutError at `until` (on the loop's clock).

        `connected` is called when a connection was made for it.
        """
        kept = self._connection
        self.connected = kept is not None and kept.open
        if kept is not None and kept.open:
            try:
                return await self._ask_over(kept, request, read(), until)
            except TimeoutError:
                raise
            except (OSError, AnswerError):
                if kept.heard or self._ended:
                    raise
                # it was closed while nobody looked, which says nothing of who answers there
                self.connected = False
        async with asyncio.timeout_at(until):
            connection = await self._connect()
        self.connected = True
        if self._ended:
            connection.abort()
            raise AnswerCutError("the connection was ended by us")
        if connected is not None:
            connected()
        return await self._ask_over(connection, request, read(), until)

    def close(self) -> None:
        """Drop the connection; a later question makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def end(self) -> None:
        """Drop the connection for good: the question that is under way fails."""
        self._ended = True
        self.close()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        host, port = self._place
        _, connection = await loop.create_connection(
            lambda: _Connection(self._buffer), host, port, ssl=self._tls
        )
        return connection

    async def _ask_over(
        self, connection: "_Connection", request: bytes, reader: AnswerReader, until: float
    ) -> HttpAnswer:
        self._connection = connection
        reusable = False
        try:
            answer = await connection.ask(request, reader, until)
            reusable = answer.reusable
            return answer
        finally:
            if not reusable:
                self.close()


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
        self._answer: asyncio.Future[HttpAnswer] | None = None

    async def ask(self, request: bytes, reader: AnswerReader, until: float) -> HttpAnswer:
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
