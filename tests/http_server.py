"""A server of handlers over real sockets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler


@asynccontextmanager
async def http_server(
    handlers: Mapping[str, Handler], *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Its port. `handlers`: by "/path", for each method, or by "POST /path"; a client that leaves cancels one."""
    app = web.Application()
    for place, handler in handlers.items():
        method, _, path = place.rpartition(" ")
        app.router.add_route(method or "*", path, handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
