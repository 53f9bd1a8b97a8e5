"""A port of its own for pages that tell of requests: served to all who reach it, unless it is on loopback or has a token."""

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from adsum.addresses import is_loopback, split_authority
from adsum.serving.handing import HandedSocket
from adsum.serving.pages import ConnectionLimits, served_at
from adsum.web.access import Access

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugPort:
    """`address`: `host:port`. `guarded`, `token`: as those of `Access`.

    `handed`: as of `served_at`. `address_setting`, `token_setting`: what the program's users call them.
    """

    address: str
    guarded: Collection[str]
    token: Callable[[], str] | None
    address_setting: str = "--debug-address"
    token_setting: str = "--debug-token-file"  # noqa: S105  # the name of a flag
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: ssl.SSLContext | None = None
    handed: HandedSocket | None = None

    @asynccontextmanager
    async def served(self, application: Callable[[Access], web.Application]) -> AsyncIterator[str]:
        """Yields its `host:port`. `application` makes what is served, guarded by the access. Raises ListenError."""
        host, port = split_authority(self.address, min_port=0)
        everyone = not is_loopback(host)
        app = application(Access(self.guarded, self.token, everyone=everyone))
        async with served_at(
            host, port, app, "the debug port", self.address_setting, self.limits, self.tls, self.handed
        ) as shown:
            if everyone and self.token is None:
                log.warning(
                    "pages that tell of requests are served to every client that reaches %s; restrict them with %s or a "
                    "NetworkPolicy",
                    shown,
                    self.token_setting,
                )
            yield shown
