"""HTTP/1.1 over one connection: a request out, its answer in; what a kept connection and a pool of them share."""

import asyncio
from typing import Final, cast

from runtime.http1.answer import AnswerError, AnswerReader, HttpAnswer

BUFFER: Final = 64 * 1024
"""Bytes taken in at once."""
_WITH_HEAD: Final = 64 * 1024
"""Bytes of a request's body that are written at once, in one piece with the head."""
_PIECE: Final = 256 * 1024
"""Bytes of the rest of it that are written whenever the connection took what there was."""


class ClientConnection(asyncio.BufferedProtocol):
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
        self._rest = memoryview(b"")
        self._paused = False

    @property
    def wrote_all(self) -> bool:
        """Whether nothing is left of the last request; the answer may come before its end."""
        return not self._rest

    async def ask(
        self, head: bytes, reader: AnswerReader, until: float | None = None, body: bytes = b""
    ) -> HttpAnswer:
        """The answer; raises AnswerError, OSError when the connection breaks, TimeoutError at `until` (loop's).

        Whoever does not wait for the end of it must `abort`.
        """
        loop = asyncio.get_running_loop()
        self._reader, self.heard = reader, False
        self._answer = loop.create_future()
        deadline = None if until is None else loop.call_at(until, self._give_up)
        self._write(head, body)
        try:
            return await self._answer
        finally:
            if deadline is not None:
                deadline.cancel()
            self._answer = None

    def abort(self) -> None:
        """Close it at once, not after what is left to be written, which the other side may never take."""
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

    def eof_received(self) -> None:
        if self._rest:
            self.abort()  # who hangs up before the request is whole does not answer it

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer is None or self._answer.done():
            return
        try:
            self._answer.set_result(self._reader.end())
        except AnswerError as error:
            self._answer.set_exception(exc or error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write_on()

    def _write(self, head: bytes, body: bytes) -> None:
        self._transport.write(head + body[:_WITH_HEAD] if body else head)
        if len(body) > _WITH_HEAD:
            self._rest = memoryview(body)[_WITH_HEAD:]
            self._write_on()

    def _write_on(self) -> None:
        """As fast as it is taken; a transport that was given all at once would hold it twice."""
        if not self._rest or self._paused or not self.open:
            return
        piece, self._rest = self._rest[:_PIECE], self._rest[_PIECE:]
        self._transport.write(piece)
        if not self._paused:  # somebody who takes everything at once does not keep the loop from others
            asyncio.get_running_loop().call_soon(self._write_on)

    def _give_up(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(TimeoutError())
