"""A gateway over real sockets that answers as a test says and records its requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pytest
from aiohttp import web


@dataclass
class Asked:
    """One request as it arrived; `closed`: its connection ended before it was answered. `end` ends it."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    end: Callable[[], object]
    closed: bool = False


async def ok(asked: Asked) -> web.StreamResponse:
    """200 and a small JSON object."""
    return web.json_response({"served": asked.headers.get("x-request-id")})


async def never(asked: Asked) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def once(may_answer: asyncio.Event) -> Callable[[Asked], Awaitable[web.StreamResponse]]:
    """Answers as `ok`, but not before."""

    async def held(asked: Asked) -> web.StreamResponse:
        await may_answer.wait()
        return await ok(asked)

    return held


@dataclass
class Target:
    """Entered: it listens on 127.0.0.1. `answer` may be replaced at any time."""

    answer: Callable[[Asked], Awaitable[web.StreamResponse]] = ok
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    now: int = 0
    most: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def ids(self) -> list[str]:
        """The ids of what was asked, in order."""
        return [asked.headers["x-request-id"] for asked in self.asked]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(request.raw_path, headers, await request.read(), loop.time(), _ending(request))
        self.asked.append(asked)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self.answer(asked)
        except asyncio.CancelledError:
            asked.closed = True
            raise
        finally:
            self.now -= 1


def _ending(request: web.Request) -> Callable[[], object]:
    assert request.transport is not None
    return request.transport.abort


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    """Answers 200 until a test says otherwise."""
    async with Target() as opened:
        yield opened
