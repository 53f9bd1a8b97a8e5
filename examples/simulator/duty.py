"""What a worker says of itself, and how many requests it is answering."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from discovery.instance import InstanceStatus


class Duty:
    """The status starts as NOT_READY and is set by whoever owns the worker's life."""

    def __init__(self) -> None:
        self.status = InstanceStatus.NOT_READY
        self._requests = 0
        self._changed = asyncio.Event()

    @property
    def requests(self) -> int:
        """Being answered now."""
        return self._requests

    @contextmanager
    def request(self) -> Iterator[None]:
        """One is answered inside the block."""
        self._requests += 1
        self._changed.set()
        try:
            yield
        finally:
            self._requests -= 1
            self._changed.set()

    async def quiet(self, seconds: float) -> None:
        """Return once no request has been here for so long: some are on their way when draining begins."""
        while True:
            self._changed.clear()
            with anyio.move_on_after(math.inf if self._requests else seconds) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                return
