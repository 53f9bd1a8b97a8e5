"""One thread with an event loop, for the blocking forms: async code is called from any thread, also from one that
runs a loop of its own.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import TypeVar, TypeVarTuple

from runtime.tasks import cancel_and_wait

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class PortalClosedError(RuntimeError):
    """There is no thread to call: it was closed, or it runs in the process that this one was forked from."""


class Portal:
    """Starts its thread at the first call, ends it at `close` or when the interpreter ends.

    `aclose` is awaited in the thread before it ends: where the async object that is called through it closes. `name`
    is what an error calls that object. A fork after the first call has no thread: what was opened is its parent's.
    """

    def __init__(self, aclose: Callable[[], Awaitable[None]], name: str) -> None:
        self._aclose = aclose
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None
        self._closed = False
        self._ended = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    def call(self, function: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments) -> Result:
        """Run the coroutine function in the thread's loop and wait for its result; Ctrl-C cancels it there.

        Raises `PortalClosedError`.
        """
        self.check_process()
        with self._lock:
            if self._closed:
                raise self._is_closed()
            future = _submit(self._started(), function, *arguments)
        try:
            return future.result()
        except CancelledError:
            if self._closed:
                raise self._is_closed() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def check_process(self) -> None:
        """`PortalClosedError` in a process that was forked since the thread started."""
        if self._is_forked():
            raise PortalClosedError(
                f"this {self._name} was opened before a fork and belongs to process {self._process}: "
                "open another one in this process"
            )

    def close(self) -> None:
        """Close what is called through it, cancel what still runs and end the thread. Idempotent."""
        if self._is_forked():
            return
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            loop = self._loop
        atexit.unregister(self.close)
        if thread is None or loop is None:
            return
        try:
            _submit(loop, self._aclose).result()
        finally:
            loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(
                target=_run, args=(loop, self._ended), name=f"{self._name} portal", daemon=True
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

    def _is_closed(self) -> PortalClosedError:
        return PortalClosedError(f"this {self._name} is closed; open another one")


def _submit(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[*Arguments], Awaitable[Result]],
    *arguments: *Arguments,
) -> "Future[Result]":
    async def run() -> Result:
        return await function(*arguments)

    return asyncio.run_coroutine_threadsafe(run(), loop)


def _run(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    try:
        loop.run_until_complete(ended.wait())
        loop.run_until_complete(cancel_and_wait(*asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
