"""An event loop for a process that has others beside it or after it."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's, but a callback that a thread brings after the end is dropped: nobody waits for it.

    gRPC has one queue of completed operations in a process. Whatever loop reads it hands each of them to the loop of its
    call, and a cancelled call completes a moment after its cancellation: asyncio's loop would then raise in the loop that
    reads (grpc/_cython/_cygrpc/aio/completion_queue.pyx.pxi).
    """

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
        dropped = asyncio.Handle(callback, args, self, context)
        dropped.cancel()
        return dropped
