"""Many small operations, one round trip at a time: what is asked while one is on its way goes with the next."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from dispatcher.broker.queue import QueueError
from runtime.tasks import cancel_and_wait

BATCH: Final = 256
"""Operations of one round trip."""
KEPT: Final = 4096
"""Lasting operations that are kept while the broker is away; the oldest go first."""
CLOSING: Final = 2.0
"""Seconds for what is still to be said when it is closed."""

Arguments = tuple[str | bytes | int, ...]
Reply = Any
Send = Callable[[Sequence[Arguments]], Awaitable[Sequence[Reply]]]
Undo = Callable[[Reply], Arguments | None]

log = logging.getLogger(__name__)


class CommandBatcher:
    """Sends operations in the order in which they were asked for; an async context manager.

    `send` answers each operation, or raises QueueError for all: nothing is known of them then.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._asked: deque[_Operation] = deque()
        self._kept: deque[_Operation] = deque(maxlen=KEPT)
        self._work = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._work.set()
        if (task := self._task) is None:
            return
        done, _ = await asyncio.wait([task], timeout=CLOSING)
        await cancel_and_wait(task)
        for one in done:
            one.result()

    async def call(self, words: Arguments, *, resend: bool = False, undo: Undo | None = None) -> Reply:
        """The answer; QueueError when there is none, ValueError for a word that no broker takes.

        It is on its way even if the caller is cancelled at once. `lasting`: it is still worth telling when the broker
        is back. `undo`: from the answer, what to do if nobody waits for it any more.
        """
        if self._closed:
            raise QueueError("this connection to the broker is closed: open it again to use it")
        for word in words:
            if isinstance(word, str) and not word.isascii():
                word.encode()  # a lone surrogate is the asker's fault, not that of whoever asks in the same trip
        operation = _Operation(words, resend, undo, asyncio.get_running_loop().create_future())
        self._asked.append(operation)
        self._work.set()
        try:
            return await operation.answer
        except asyncio.CancelledError:
            self._abandoned(operation)
            raise

    def _abandoned(self, operation: "_Operation") -> None:
        """It was answered already, but whoever asked was cancelled before looking."""
        answer = operation.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self._take_back(operation, answer.result())

    def _take_back(self, operation: "_Operation", answer: Reply) -> None:
        words = operation.undo(answer) if operation.undo is not None else None
        if words is not None:
            nobody = asyncio.get_running_loop().create_future()
            nobody.cancel()
            self._asked.append(_Operation(words, True, None, nobody))
            self._work.set()

    async def _run(self) -> None:
        try:
            while self._asked or not self._closed:
                await self._work.wait()
                self._work.clear()
                while self._asked:
                    await self._trip()
                if self._closed:
                    self._work.set()
        finally:
            self._closed = True
            for operation in self._asked:
                operation.fail("this connection to the broker was closed")

    async def _trip(self) -> None:
        """One round trip; what was kept goes first."""
        batch: list[_Operation] = []
        for source in (self._kept, self._asked):
            while source and len(batch) < BATCH:
                batch.append(source.popleft())
        try:
            answers = await self._send([operation.words for operation in batch])
        except QueueError as error:
            self._lost(batch, str(error))
        except Exception:  # those who come after must not be deaf and dumb for it
            log.exception("a fault in a round trip; the next ones go on")
            self._fail(batch)
        except BaseException:
            self._fail(batch)
            raise
        else:
            for operation, answer in zip(batch, answers, strict=True):
                self._answered(operation, answer)

    def _fail(self, batch: Sequence["_Operation"]) -> None:
        for operation in batch:
            operation.fail("a fault of ours, see the log")

    def _answered(self, operation: "_Operation", answer: Reply) -> None:
        if operation.answer.done():
            self._take_back(operation, answer)
        else:
            operation.answer.set_result(answer)

    def _lost(self, batch: Sequence["_Operation"], why: str) -> None:
        """Nobody who asked meanwhile waits longer than the others: no backlog is tried one batch at a time."""
        self._kept.extendleft(operation for operation in reversed(batch) if operation.resend)
        self._kept.extend(operation for operation in self._asked if operation.resend)
        for operation in (*batch, *self._asked):
            operation.fail(why)
        self._asked.clear()


@dataclass(slots=True)
class _Operation:
    words: Arguments
    resend: bool
    undo: Undo | None
    answer: asyncio.Future[Reply]

    def fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(QueueError(why))
