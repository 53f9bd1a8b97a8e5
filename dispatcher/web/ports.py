"""Opens the dispatcher's port, and that of `http.debug_address`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

from dispatcher.broker.message import MAX_PAYLOAD
from dispatcher.config.config_file import HttpConfig
from dispatcher.web.queue_pages import GUARDED, QueuePages
from runtime.config.problems import ConfigError
from runtime.serving.pages import ConnectionLimits, served_at
from runtime.web.access import Access, token_file
from runtime.web.debug_port import DebugPort

_LIMITS: Final = ConnectionLimits(max_connections=2048)
"""A client that waits for a result holds a connection."""


class PortAddresses(NamedTuple):
    """`host:port` of each; `debug` None: there is none."""

    http: str
    debug: str | None = None


@asynccontextmanager
async def serve_pages(
    config: HttpConfig, pages: QueuePages, add_routes: Callable[[web.Application], None]
) -> AsyncIterator[PortAddresses]:
    """`add_routes` adds what is not the page to the first port. Raises ListenError and ConfigError."""
    token = _token(config)
    async with AsyncExitStack() as stack:
        app = web.Application(client_max_size=MAX_PAYLOAD)
        pages.add_routes(app, Access(GUARDED, token))
        add_routes(app)
        setting = "http.host and http.port"
        opened = served_at(config.host, config.port, app, "the front door", setting, _LIMITS)
        http = await stack.enter_async_context(opened)
        if config.debug_address is None:
            yield PortAddresses(http)
            return
        port = DebugPort(
            address=config.debug_address,
            guarded=GUARDED,
            token=token,
            address_setting="http.debug_address",
            token_setting="http.debug_token_file",  # noqa: S106  # the name of a field
            limits=_LIMITS,
        )
        debug = await stack.enter_async_context(port.served(partial(pages.add_routes, web.Application())))
        yield PortAddresses(http, debug)


def _token(config: HttpConfig) -> Callable[[], str] | None:
    if config.debug_token_file is None:
        return None
    try:
        return token_file(Path(config.debug_token_file), "the file")
    except ValueError as error:
        raise ConfigError("http.debug_token_file", str(error)) from error
