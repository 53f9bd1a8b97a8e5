"""A worker that misbehaves on demand: an HTTP server whose answers the test defines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from discovery import Instance
from tests.http_server import http_server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeWorker:
    """Serves `/metadata` with `handler`; keeps the requests."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.handler: Handler = self.document
        self.requests: list[web.Request] = []
        self.body = b'{"model": {"name": "m"}}'
        self.headers: dict[str, str] = {}
        self.port = 0

    async def document(self, request: web.Request) -> web.Response:
        return web.Response(body=self.body, content_type="application/json", headers=self.headers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.handler(request)

    def instance(self, instance_id: str = "a", incarnation: str = "one") -> Instance:
        return Instance(instance_id, "prod", "decode", self.host, self.port, incarnation)


@asynccontextmanager
async def serving(worker: FakeWorker) -> AsyncIterator[FakeWorker]:
    pages = http_server({"/metadata": worker.answer}, host=worker.host, port=worker.port)
    async with pages as worker.port:
        yield worker


async def hang(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError
