"""One kept HTTP/1.1 connection to one place, for whoever asks the same question again and again.

With a general HTTP client most of the price of such a question would be the client (benchmarks/README.md, "scraping").
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeAlias

from runtime.http1.answer import AnswerCutError, AnswerError, AnswerReader, HttpAnswer
from runtime.http1.protocol import ClientConnection

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
        self._connection: ClientConnection | None = None
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

    async def _connect(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        host, port = self._place
        _, connection = await loop.create_connection(
            lambda: ClientConnection(self._buffer), host, port, ssl=self._tls
        )
        return connection

    async def _ask_over(
        self, connection: ClientConnection, request: bytes, reader: AnswerReader, until: float
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
