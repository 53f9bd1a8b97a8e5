"""Runs async code for blocking callers in one thread with an event loop; callers may be in any thread, also in one that
runs a loop of its own.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context
from typing import TypeVar, TypeVarTuple

from adsum.tasks import cancel_and_wait

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class PortalClosedError(RuntimeError):
    """The portal's thread has ended, or belongs to the process that this one was forked from."""


class Portal:
    """Starts its thread at the first call and ends it at `close` or when the interpreter exits.

    `aclose` closes the async object that is called through the portal; it is awaited in the thread before that ends.
    `name` names the object in errors. A child that is forked after the first call has no such thread, because fork(2)
    copies only the calling thread: there, calls raise `PortalClosedError`.
    """

    def __init__(self, aclose: Callable[[], Awaitable[None]], name: str) -> None:
        self._aclose = aclose
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None
        self.closed = False
        self._stop = asyncio.Event()

    def call(self, function: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments) -> Result:
        """Run a coroutine function in the thread's loop and wait for its result; Ctrl-C cancels it there.

        Raises what it raises, else `PortalClosedError`.
        """
        self.check_process()
        with self._lock:
            if self.closed:
                raise self._closed_error()
            future = _submit(self._ensure_thread(), function, *arguments)
        try:
            return future.result()
        except CancelledError:
            if self.closed:
                raise self._closed_error() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def check_process(self) -> None:
        """Raises `PortalClosedError` in a process that was forked after the thread started."""
        if self._is_forked():
            raise PortalClosedError(
                f"this {self._name} was opened before a fork and belongs to process {self._process}: "
                "open another one in this process"
            )

    def close(self) -> None:
        """Await `aclose`, cancel the remaining tasks and end the thread. Idempotent; does nothing in a forked child."""
        if self._is_forked():
            return
        with self._lock:
            self.closed = True
            thread, self._thread = self._thread, None
            loop = self._loop
        atexit.unregister(self.close)
        if thread is None or loop is None:
            return
        try:
            _submit(loop, self._aclose).result()
        finally:
            loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    def _ensure_thread(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = EventLoop()
            thread = threading.Thread(
                target=_run, args=(loop, self._stop), name=f"{self._name} portal", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._process, self._loop, self._thread = os.getpid(), loop, thread
            atexit.register(self.close)
        return self._loop

    def _is_forked(self) -> bool:
        return self._process not in (None, os.getpid())

    def _closed_error(self) -> PortalClosedError:
        return PortalClosedError(f"this {self._name} is closed; open another one")


def _submit(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[*Arguments], Awaitable[Result]],
    *arguments: *Arguments,
) -> "Future[Result]":
    async def run() -> Result:
        return await function(*arguments)

    return asyncio.run_coroutine_threadsafe(run(), loop)


def _run(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    try:
        loop.run_until_complete(stop.wait())
        loop.run_until_complete(cancel_and_wait(*asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's, but a callback that a thread brings after the end is dropped: nobody waits for it.

    gRPC has one queue of completed operations in a process. Whatever loop reads it hands each of them to the loop of its
    call, and a cancelled call completes a moment after its cancellation: asyncio's loop would then raise in the loop that
    reads (grpc/_cython/_cygrpc/aio/completion_queue.pyx.pxi).
    """

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not self.is_closed():
                raise
        dropped = asyncio.Handle(callback, args, self, context)
        dropped.cancel()
        return dropped
