"""The status of a simulated worker, and its requests in flight, for the drain."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from discovery.instance import InstanceStatus


class WorkerState:
    """`status` is set by `worker.py`, which runs the worker's lifecycle."""

    def __init__(self) -> None:
        self.status = InstanceStatus.NOT_READY
        self._requests = 0
        self._changed = asyncio.Event()

    @property
    def requests(self) -> int:
        """Requests in flight."""
        return self._requests

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request that is served inside the block."""
        self._requests += 1
        self._changed.set()
        try:
            yield
        finally:
            self._requests -= 1
            self._changed.set()

    async def wait_idle(self, seconds: float) -> None:
        """Wait until no request was in flight for so long: routers still send some when a drain begins."""
        while True:
            self._changed.clear()
            with anyio.move_on_after(math.inf if self._requests else seconds) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                return
