"""Decides who may see pages that tell of requests: this machine, or those who have the token."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from adsum.addresses import is_loopback
from adsum.changing_files import ChangingFile
from adsum.errors import os_reason
from adsum.logs import RateLimitedLog

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ADMITTED: Final = web.RequestKey("ADMITTED", bool)
"""Set in a request that `Access` let pass: a check of the whole port need not look at it again."""
_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 4096
_LOCAL_NAMES: Final = ("localhost",)
_PROXY_HEADERS: Final = ("forwarded", "via", "x-real-ip")
_PROXY_PREFIXES: Final = ("x-forwarded-", "x-envoy-", "x-original-")
"""Envoy adds x-forwarded-proto even where it adds no x-forwarded-for."""
_SELF: Final = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
"""From where this machine calls itself. Other loopback addresses are those of sidecars: Istio's passes strangers on from
127.0.0.6."""
_CHALLENGES: Final = ('Basic realm="adsum", charset="UTF-8"', 'Bearer realm="adsum"')
_FOR_OTHERS: Final = (
    "This page is shown to the machine that it runs on, under the name localhost.\n"
    "From elsewhere, forward the port (ssh -L, kubectl port-forward), or start the program with --debug-token-file "
    "or --debug-address.\n"
)
_CROSS_SITE: Final = "Another site's page asked for this; it is shown to its own page only.\n"
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def wants_page(request: web.Request) -> bool:
    """Whether a browser asks; curl accepts anything and names no HTML."""
    return "text/html" in request.headers.get(hdrs.ACCEPT, "").lower()


def token_file(path: Path, flag: str = "--debug-token-file") -> Callable[[], str]:
    """Reads the token, again when the file changes. Raises ValueError now if it holds none that can be used."""
    read = ChangingFile(path, _read_token)
    try:
        read()
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be read: {os_reason(error)}") from error
    except ValueError as error:
        raise ValueError(f"{flag} {path}: {error}") from error
    return read


def _read_token(path: Path) -> str:
    with path.open("rb") as file:
        token = file.read(_LONGEST_TOKEN + 2).strip()
    # bounded: _LONGEST_TOKEN bytes of the operator's file
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise ValueError(
            f"it holds no usable token; expected one line of {_SHORTEST_TOKEN} to {_LONGEST_TOKEN} ASCII characters "
            "without spaces, as of: openssl rand -hex 32"
        )
    return token.decode()


class Access:
    """Guards the resources `paths` (as the router spells them), and `/` where a browser asks for it.

    They are for a client of this machine that calls it by a loopback name, and that no proxy stands for (a site that makes
    its own name resolve to 127.0.0.1 sends that name: DNS rebinding), and for who sends the token: `Authorization: Bearer`,
    or Basic with any user, which browsers ask for. `everyone`: the operator opened this port to all who reach it; without
    a token none is asked for. `reviewed`: another check of this port decides about the bearer tokens that are not ours.
    """

    def __init__(
        self, paths: Collection[str] = (), token: Callable[[], str] | None = None, *, everyone: bool = False
    ) -> None:
        self.reviewed = False
        self._limited_log = RateLimitedLog(log)
        self._paths = frozenset(paths)
        self._token = token
        self._everyone = everyone

    def guard(self, app: web.Application) -> web.Application:
        """The same application. To be called before other checks are added, and before it runs."""
        app.middlewares.append(self.check)
        app.on_response_prepare.append(self._set_headers)
        return app

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._guards(request):
            return await handler(request)
        refusal = self._refusal(request)
        if refusal is None:
            request[ADMITTED] = True
        elif not (self.reviewed and _credentials(request)[0] == "bearer"):
            return refusal
        return await handler(request)

    def _guards(self, request: web.Request) -> bool:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        return path in self._paths or (path == "/" and wants_page(request))

    def _refusal(self, request: web.Request) -> web.Response | None:
        if _is_cross_site(request):
            return web.Response(status=403, text=_CROSS_SITE)
        if _is_local(request) or self._has_token(request) or (self._everyone and self._token is None):
            return None
        if self._token is None:
            return web.Response(status=403, text=_FOR_OTHERS)
        refusal = web.Response(status=401, text="The token of --debug-token-file is required.\n")
        for challenge in _CHALLENGES:
            refusal.headers.add(hdrs.WWW_AUTHENTICATE, challenge)
        return refusal

    def _has_token(self, request: web.Request) -> bool:
        if self._token is None:
            return False
        scheme, given = _credentials(request)
        if scheme == "basic":
            given = _basic_password(given)
        elif scheme != "bearer":
            return False
        try:
            token = self._token()
        except (OSError, ValueError) as error:
            self._limited_log.warning(
                "token", "the token file is not usable, no token is accepted: %s", os_reason(error)
            )
            return False
        # digests, so that neither the time nor the length tells how much of it was right
        return hmac.compare_digest(_digest(given), _digest(token))

    async def _set_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._guards(request):
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)


def _is_local(request: web.Request) -> bool:
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    if not peer or peer[0] not in _SELF:
        return False
    hosts = request.headers.getall(hdrs.HOST, [])
    if len(hosts) != 1 or any(_is_of_a_proxy(name.lower()) for name in request.headers):
        return False
    host = _host_of(hosts[0])
    return host in _LOCAL_NAMES or _is_loopback_ip(host)


def _is_of_a_proxy(header: str) -> bool:
    return header in _PROXY_HEADERS or header.startswith(_PROXY_PREFIXES)


def _is_loopback_ip(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return is_loopback(str(mapped or address))


def _host_of(authority: str) -> str:
    """The host of `Host`, without port and brackets."""
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdecimal():
        host = authority
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host.lower()


def _is_cross_site(request: web.Request) -> bool:
    """Whether a page of another origin asks; to follow a link from there is allowed (W3C, Fetch Metadata)."""
    headers = request.headers
    site = headers.get("Sec-Fetch-Site", "none")
    if site not in ("none", "same-origin"):
        return not (request.method == "GET" and headers.get("Sec-Fetch-Dest") == "document")
    origin = headers.get(hdrs.ORIGIN)
    return origin is not None and origin.partition("://")[2] != headers.get(hdrs.HOST)


def _credentials(request: web.Request) -> tuple[str, str]:
    """The scheme in lower case, and what follows it."""
    scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return scheme.lower(), given.strip()


def _basic_password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
