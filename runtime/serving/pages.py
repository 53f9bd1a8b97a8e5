"""An aiohttp application on sockets of its own, with bounds that aiohttp does not have."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from runtime.serving.acceptor import Acceptor
from runtime.serving.connections import Connections
from runtime.serving.descriptors import most_connections


@dataclass(frozen=True, slots=True)
class Bounds:
    """`most` connections; `idle_timeout`, in seconds, is for a request to come, and for its answer to be read.

    `linger`: seconds that requests under way get at the end.
    """

    most: int = 512
    idle_timeout: float = 30.0
    linger: float = 60.0


_BOUNDS: Final = Bounds()


class PageServer:
    """From `start` to `aclose`, which closes the sockets and may be called twice; `name` is the port's in the log.

    An application of its own: it is changed, so that its connections know when they are idle.
    """

    def __init__(
        self,
        app: web.Application,
        listening: Sequence[socket.socket],
        name: str,
        bounds: Bounds = _BOUNDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        app.middlewares.append(_busy)
        self._connections = Connections(most_connections(bounds.most), bounds.idle_timeout)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that went away gives what it held back
            shutdown_timeout=bounds.linger,
        )
        self.port = int(listening[0].getsockname()[1])
        self._acceptor = Acceptor(listening, self._connection, self._connections, name=name, tls=tls)

    async def start(self) -> None:
        await self._runner.setup()
        self._acceptor.start()

    async def aclose(self) -> None:
        """Take no more connections, end those that are open."""
        self._acceptor.close()
        await self._runner.cleanup()

    def _connection(self) -> "_PageConnection":
        server = self._runner.server
        assert server is not None  # noqa: S101  # `start` has set it up
        return _PageConnection(server, self._connections)


class _PageConnection(web.RequestHandler):
    """One connection of a client."""

    __slots__ = ("_connections", "idle_since")

    def __init__(self, server: web.Server, connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None)  # type: ignore[arg-type]  # None is none, as a runner passes it
        self._connections = connections
        self.idle_since: float | None = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.open.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.open.discard(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@web.middleware
async def _busy(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    connection = cast(_PageConnection, request.protocol)
    connection.idle_since = None
    try:
        return await handler(request)
    finally:  # from here on its client has so long to read the answer
        connection.idle_since = asyncio.get_running_loop().time()
