"""Serves an aiohttp application within limits that aiohttp does not have: of connections, and of their idle time."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web

from adsum.addresses import authority
from adsum.serving.acceptor import Acceptor, Connections
from adsum.serving.handing import HandedSocket
from adsum.serving.sockets import connection_limit, listening_sockets

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times are in seconds. `idle_timeout`: until a request comes, and until its response is read. `shutdown_timeout`: for
    running requests when the server closes.
    """

    max_connections: int = 512
    idle_timeout: float = 30.0
    shutdown_timeout: float = 60.0


_DEFAULT_LIMITS: Final = ConnectionLimits()


class PageServer:
    """From `start` to `aclose`, which closes the sockets and may be called twice; `name` is the port's in the log.

    An application of its own: it is changed, so that its connections know when they are idle.
    """

    def __init__(
        self,
        app: web.Application,
        listening: Sequence[socket.socket],
        name: str,
        limits: ConnectionLimits = _DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        app.middlewares.append(_track_activity)
        self._connections = Connections(connection_limit(limits.max_connections), limits.idle_timeout)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that went away gives what it held back
            shutdown_timeout=limits.shutdown_timeout,
        )
        self.port = int(listening[0].getsockname()[1])
        self._acceptor = Acceptor(listening, self._connection, self._connections, name=name, tls=tls)

    async def start(self) -> None:
        await self._runner.setup()
        self._acceptor.start()

    async def aclose(self) -> None:
        """Accept no more connections; running requests get `shutdown_timeout` seconds."""
        self._acceptor.close()
        await self._runner.cleanup()

    def _connection(self) -> "PageConnection":
        server = self._runner.server
        assert server is not None  # noqa: S101  # `start` has set it up
        return PageConnection(server, self._connections)


@asynccontextmanager
async def served_at(  # noqa: PLR0913
    host: str,
    port: int,
    app: web.Application,
    name: str,
    setting: str,
    limits: ConnectionLimits = _DEFAULT_LIMITS,
    tls: ssl.SSLContext | None = None,
    handed: HandedSocket | None = None,
) -> AsyncIterator[str]:
    """A PageServer that runs; yields its `host:port`. Raises ListenError, which names the `setting` that chose the port.

    `handed`: connections come by it; another process listens.
    """
    listening = [handed] if handed is not None else listening_sockets(host, port, setting)
    server = PageServer(app, listening, name, limits, tls)
    await server.start()
    try:
        yield authority(host, server.port)
    finally:
        await server.aclose()


class PageConnection(web.RequestHandler):
    """aiohttp's protocol of one connection, which tells when it is idle.

    A client that does not read its answer is idle too: otherwise a few hundred of them would take all places.
    """

    __slots__ = ("_answered", "_blocked", "_connections", "_running", "idle_since")

    def __init__(self, server: web.Server, connections: Connections, **options: Any) -> None:
        """`options`: of aiohttp's handler, such as `max_field_size`."""
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, **options)  # type: ignore[arg-type]  # None is none, as a runner passes it
        self._connections = connections
        self.idle_since: float | None = loop.time()
        self._answered = self._blocked = self._running = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.open.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.open.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = True
        if self._running:
            self.idle_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked = False
        if self._running:
            self.idle_since = None

    def set_running(self, running: bool) -> None:
        """A request begins, or its handler has ended: then the idle time-out limits how long its response may be read."""
        self._running = running
        self.idle_since = None if running else asyncio.get_running_loop().time()
        self._answered = self._answered or not running

    @property
    def proven(self) -> bool:
        return self._answered and not self._blocked

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP: aiohttp would log it with a traceback, and it may have a token in it."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        log.debug("%s sent what cannot be read: %s", request.remote, type(exc).__name__)
        refusal = web.Response(status=status, text=message)
        refusal.force_close()
        return refusal

    def expire(self, now: float, idle_timeout: float) -> None:
        if self.idle_since is not None and now - self.idle_since > idle_timeout:
            self.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def leave(self) -> None:
        """Connections of pages are short, and all go to one process."""


@web.middleware
async def _track_activity(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    connection = cast(PageConnection, request.protocol)
    connection.set_running(True)
    try:
        return await handler(request)
    finally:
        connection.set_running(False)


def add_probes(app: web.Application, unready_reason: Callable[[], str]) -> None:
    """/healthz while the process runs, and /readyz: 503 with the reason, unless that is empty."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = unready_reason()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", ready)
