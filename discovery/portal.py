"""One thread with an event loop, for the blocking forms: async code is called from any thread, also from one that
runs a loop of its own.
"""

import atexit
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar, TypeVarTuple

from anyio.from_thread import BlockingPortal, start_blocking_portal

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class Portal:
    """Starts its thread at the first call, ends it at `close` or when the interpreter ends.

    `aclose` is awaited in the thread before it ends: where the async object that is called through it closes.
    """

    def __init__(self, aclose: Callable[[], Awaitable[None]]) -> None:
        self._aclose = aclose
        self._lock = threading.Lock()
        self._resources = ExitStack()
        self._portal: BlockingPortal | None = None

    def call(self, function: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments) -> Result:
        """Run the coroutine function in the thread's loop and wait for its result; Ctrl-C cancels it there."""
        future = self._started().start_task_soon(function, *arguments)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close what is called through it, cancel what still runs and end the thread. Idempotent."""
        with self._lock:
            portal, self._portal = self._portal, None
        atexit.unregister(self.close)
        if portal is not None:
            with self._resources:
                portal.call(self._aclose)

    def _started(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                self._portal = self._resources.enter_context(start_blocking_portal("asyncio"))
                atexit.register(self.close)
            return self._portal
