"""The wire contract over aiohttp: in the worker's own application, or on a port of its own."""

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from discovery.errors import RegistrationError
from registry.contract import Contract, Header
from registry.document import DocumentAnswer
from runtime.addresses import authority
from runtime.serving.pages import Bounds, PageServer

CONNECTIONS = 4096
"""Open at once: 2,048 held GETs, and those who ask now and then."""
IDLE = 75.0
"""Seconds; readers keep a connection for longer than the pause between two of their GETs."""
_LINGER = 1.0
"""Seconds that answers under way get when the server stops."""


def application(contract: Contract) -> web.Application:
    """An application of its own; `app.add_subapp("/worker", application(contract))` puts it under a prefix."""
    app = web.Application(client_max_size=1)
    add_routes(app, contract)
    return app


def add_routes(app: web.Application, contract: Contract) -> None:
    """Put the contract's paths into an application that is not started yet.

    There, aiohttp does not say that a reader went away: its GET stays held for the rest of its wait.
    """
    for path, answer in contract.routes.items():
        app.router.add_get(path, _handler(answer))


class ContractServer:
    """The contract on its own port. `start` returns the port; `aclose` ends held GETs and may be called twice."""

    def __init__(self, contract: Contract, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._contract = contract
        self._ssl = ssl_context
        self._server: PageServer | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listen on `host` (None: every interface, IPv6 and IPv4) and `port` (0: any free one).

        Raises `RegistrationError` when that cannot be had.
        """
        self._server = PageServer(
            application(self._contract),
            [_listen(host, port)],
            "the metadata's port",
            Bounds(CONNECTIONS, IDLE, _LINGER),
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
    answer: Callable[[Header], Awaitable[DocumentAnswer]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        answered = await answer(_header(request))
        return web.Response(status=answered.status, headers=answered.headers, body=answered.body)

    return handle


def _header(request: web.Request) -> Header:
    def header(name: str) -> str | None:
        lines = request.headers.getall(name, ())
        return ", ".join(lines) if lines else None

    return header


def _listen(host: str | None, port: int) -> socket.socket:
    try:
        if host is None:
            return _listen_everywhere(port)
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        place = f"port {port}" if host is None else authority(host, port)
        raise RegistrationError(
            f"the worker's metadata cannot be served on {place}: {_cause(error)}"
        ) from error


def _listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # no IPv6 address on this machine, or a taken port: the next line says which
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)


def _cause(error: OSError | OverflowError) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "another process listens there; choose another port, or 0 for any free one"
        case errno.EACCES:
            return "ports below 1024 need a privilege that this process lacks; pass a higher one"
        case errno.EADDRNOTAVAIL | socket.EAI_NONAME | socket.EAI_AGAIN:
            return f"{error.args[-1]}; `address` must be a host name or an IP address of this machine"
    return str(error)
