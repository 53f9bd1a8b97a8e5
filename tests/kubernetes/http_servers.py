"""HTTP servers with a handler of the test, and short timings for a client."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web

from discovery.kubernetes import ClusterTransport, Timings

FAST = Timings(header_deadline=0.3, connect_timeout=0.3, credentials_deadline=1.0)


Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


Serve: TypeAlias = Callable[..., Awaitable[str]]


@asynccontextmanager
async def servers() -> AsyncIterator[Serve]:
    """`await serve(handler, ssl_context, port)` starts a server that answers everything with `handler` and returns its
    URL. A server that had the port before is stopped."""
    running: dict[int, web.AppRunner] = {}

    async def start(handler: Handler, context: ssl.SSLContext | None = None, port: int = 0) -> str:
        if port:
            await running.pop(port).cleanup()
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        port = runner.addresses[0][1]
        running[port] = runner
        return f"{'https' if context else 'http'}://127.0.0.1:{port}"

    try:
        yield start
    finally:
        for runner in running.values():
            await runner.cleanup()


async def get(transport: ClusterTransport, path: str = "/x", **params: str) -> tuple[int, bytes]:
    async with transport.open(path, params) as response:
        return response.status, b"".join([chunk async for chunk in response.chunks])


class TokenServer:
    """Answers 401 unless the token is `wanted`."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        granted = request.headers.get("Authorization") == f"Bearer {self.wanted}"
        return web.Response(status=200 if granted else 401)
