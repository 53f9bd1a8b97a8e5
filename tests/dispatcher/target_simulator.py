"""A target on 127.0.0.1 that counts running requests and exports the count on a metrics page after a chosen lag."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.http_server import http_server


class TargetSimulator:
    """`others`: load that is not ours. `highest`: the most that ever ran at once, others included.

    `answering`: while it is not set, the page is not answered.
    """

    def __init__(self, *, late: float = 0.0) -> None:
        self.late = late
        self.others = 0
        self.ready = 1
        self.running = 0
        self.served = 0
        self.highest = 0
        self.looks = 0
        self.status = 200
        self.page: str | None = None
        self.date: str | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self._history: deque[tuple[float, int]] = deque()
        self.url = ""

    @property
    def load(self) -> int:
        return self.others + self.running

    def note(self) -> None:
        self.highest = max(self.highest, self.load)
        self._history.append((time.monotonic(), self.load))

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """One that runs."""
        self.running += 1
        self.note()
        try:
            yield
        finally:
            self.running -= 1
            self.served += 1
            self.note()

    async def _metrics(self, request: web.Request) -> web.Response:
        await self.answering.wait()
        self.looks += 1
        if self.page is not None:
            headers = {"Date": self.date} if self.date is not None else None
            return web.Response(text=self.page, status=self.status, headers=headers)
        then = time.monotonic() - self.late
        while len(self._history) > 1 and self._history[1][0] <= then:
            self._history.popleft()
        body = f"# TYPE load gauge\nload {self._history[0][1]}\nready {self.ready}\n"
        return web.Response(text=body, status=self.status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The URL of the server, while inside; before that it had the load that it has at first."""
        self.note()
        async with http_server({"/metrics": self._metrics}) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self.url
