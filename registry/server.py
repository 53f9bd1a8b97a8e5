"""Serves the wire contract with aiohttp: in the worker's own application, or on a port of its own."""

import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from adsum.serving.pages import ConnectionLimits, PageServer
from adsum.serving.sockets import ListenError, listening_sockets
from discovery.errors import RegistrationError
from registry.contract import Contract, Header
from registry.document import DocumentResponse

MAX_CONNECTIONS = 4096
"""2,048 held GETs (`MAX_HELD`), and as many readers that poll."""
IDLE_TIMEOUT = 75.0
"""Seconds. Longer than the interval between two GETs of a polling reader, so that it can keep its connection."""
_SHUTDOWN_TIMEOUT = 1.0
"""Seconds in which running responses may complete when the server stops."""


def application(contract: Contract) -> web.Application:
    """An application with the contract's paths; `app.add_subapp("/worker", application(contract))` adds a prefix."""
    app = web.Application(client_max_size=1)
    add_routes(app, contract)
    return app


def add_routes(app: web.Application, contract: Contract) -> None:
    """Add the contract's paths to an application that is not started yet.

    aiohttp cancels the handler of a client that disconnects only with `handler_cancellation=True`, which is off by
    default: without it a GET stays held for the rest of its wait.
    """
    for path, respond in contract.routes.items():
        app.router.add_get(path, _handler(respond))


class ContractServer:
    """Serves the contract on its own port. `aclose` aborts held GETs and may be called twice."""

    def __init__(
        self, contract: Contract, host: str | None, port: int, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """`host` None: every interface, IPv6 and IPv4; `port` 0: any free one."""
        self._contract = contract
        self._host, self._port = host, port
        self._ssl = ssl_context
        self._server: PageServer | None = None

    async def start(self) -> int:
        """Returns the port. Raises `RegistrationError` if the address is not available."""
        try:
            listening = listening_sockets(self._host or "::", self._port, "address and port of registry.open")
        except ListenError as error:
            raise RegistrationError(f"the worker's metadata cannot be served: {error}") from error
        self._server = PageServer(
            application(self._contract),
            listening,
            "the metadata's port",
            ConnectionLimits(MAX_CONNECTIONS, IDLE_TIMEOUT, _SHUTDOWN_TIMEOUT),
            self._ssl,
        )
        try:
            await self._server.start()
        except BaseException:
            await self.aclose()
            raise
        return self._server.port

    async def aclose(self) -> None:
        if self._server is not None:
            await self._server.aclose()


def _handler(
    respond: Callable[[Header], Awaitable[DocumentResponse]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        response = await respond(_header(request))
        return web.Response(status=response.status, headers=response.headers, body=response.body)

    return handle


def _header(request: web.Request) -> Header:
    def header(name: str) -> str | None:
        lines = request.headers.getall(name, ())
        return ", ".join(lines) if lines else None

    return header
