"""Sends many small operations in few round trips: what is requested while one is under way goes with the next.

One round trip at a time keeps the operations in order, so that a release never overtakes its heartbeat. It also makes
batches by itself: the slower the broker, the larger the batch.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from adsum.tasks import cancel_and_wait
from dispatcher.broker.contract.queue import QueueError

BATCH: Final = 256
"""Operations in one round trip."""
MAX_RETAINED: Final = 4096
"""Operations with `resend` that are kept while the broker is away; the oldest are dropped first. Leases end them."""
CLOSE_TIMEOUT: Final = 2.0
"""Seconds for sending what is left when it is closed."""

Arguments = tuple[str | bytes | int, ...]
Reply = Any
Send = Callable[[Sequence[Arguments]], Awaitable[Sequence[Reply]]]
Undo = Callable[[Reply], Arguments | None]

log = logging.getLogger(__name__)


class CommandBatcher:
    """Sends operations in the order of their calls; an async context manager.

    `send` returns a reply for each operation, or raises QueueError for all: it is unknown then whether they were done.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._pending: deque[_Operation] = deque()
        self._retained: deque[_Operation] = deque(maxlen=MAX_RETAINED)
        self._work = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closed = True
        self._work.set()
        if (task := self._task) is None:
            return
        done, _ = await asyncio.wait([task], timeout=CLOSE_TIMEOUT)
        await cancel_and_wait(task)
        for one in done:
            one.result()

    async def call(self, arguments: Arguments, *, resend: bool = False, undo: Undo | None = None) -> Reply:
        """The reply. Raises QueueError if there is none, ValueError for text that cannot be encoded.

        The operation is sent even if the caller is cancelled at once. `resend`: if the broker is away, send it again
        when it is back, although the caller got its QueueError. `undo`: given the reply, the operation that takes it
        back; sent if the caller was cancelled, since nobody would release what it got.
        """
        if self._closed:
            raise QueueError("this connection to the broker is closed: open it again to use it")
        for word in arguments:
            if isinstance(word, str) and not word.isascii():
                word.encode()  # raises for a lone surrogate here, in its caller; in `send` it would fail the whole batch
        operation = _Operation(arguments, resend, undo, asyncio.get_running_loop().create_future())
        self._pending.append(operation)
        self._work.set()
        try:
            return await operation.reply
        except asyncio.CancelledError:
            # The reply may be in already, if the caller was cancelled before it ran again.
            reply = operation.reply
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                self._undo(operation, reply.result())
            raise

    def _undo(self, operation: "_Operation", reply: Reply) -> None:
        arguments = operation.undo(reply) if operation.undo is not None else None
        if arguments is not None:
            nobody = asyncio.get_running_loop().create_future()
            nobody.cancel()
            self._pending.append(_Operation(arguments, True, None, nobody))
            self._work.set()

    async def _run(self) -> None:
        try:
            while self._pending or not self._closed:
                await self._work.wait()
                self._work.clear()
                while self._pending:
                    await self._send_batch()
                if self._closed:
                    self._work.set()
        finally:
            self._closed = True
            for operation in self._pending:
                operation.fail("this connection to the broker was closed")

    async def _send_batch(self) -> None:
        """One round trip; retained operations go first, since they are older."""
        batch: list[_Operation] = []
        for source in (self._retained, self._pending):
            while source and len(batch) < BATCH:
                batch.append(source.popleft())
        try:
            replies = await self._send([operation.arguments for operation in batch])
        except QueueError as error:
            self._broker_away(batch, str(error))
        except Exception:  # a fault of one batch must not end the task that serves all later ones
            log.exception("internal error in a round trip to the broker; the next ones go on")
            self._fail(batch)
        except BaseException:
            self._fail(batch)
            raise
        else:
            for operation, reply in zip(batch, replies, strict=True):
                self._set_reply(operation, reply)

    def _fail(self, batch: Sequence["_Operation"]) -> None:
        for operation in batch:
            operation.fail("internal error in a round trip to the broker, see the log")

    def _set_reply(self, operation: "_Operation", reply: Reply) -> None:
        if operation.reply.done():
            self._undo(operation, reply)
        else:
            operation.reply.set_result(reply)

    def _broker_away(self, batch: Sequence["_Operation"], why: str) -> None:
        """Fail the batch and all that are pending.

        Pending operations would each wait for the broker's timeout in a batch of their own: minutes for a long queue.
        """
        self._retained.extendleft(operation for operation in reversed(batch) if operation.resend)
        self._retained.extend(operation for operation in self._pending if operation.resend)
        for operation in (*batch, *self._pending):
            operation.fail(why)
        self._pending.clear()


@dataclass(slots=True)
class _Operation:
    arguments: Arguments
    resend: bool
    undo: Undo | None
    reply: asyncio.Future[Reply]

    def fail(self, why: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(QueueError(why))
