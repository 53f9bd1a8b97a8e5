"""The metrics port: its address, its TLS, and who may read it."""

import asyncio
import hashlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from adsum.addresses import is_loopback
from adsum.quoting import quoted
from adsum.serving.handing import HandedSocket
from adsum.serving.pages import served_at
from adsum.tasks import StartTask
from adsum.web.access import ADMITTED, Access, token_file
from adsum.web.debug_port import DebugPort
from adsum.web.program_page import ProgramPage
from discovery.errors import DiscoveryError
from epp.config.settings import Settings
from epp.config.tls_rules import TlsRules
from epp.kubernetes.access_review import AccessReviews, ReviewError
from epp.telemetry.decision_pages import DECISIONS_PATH, EXPLAIN_PATH
from epp.telemetry.profile import ProfilePage
from epp.wire import certificate
from epp.wire.certificate import Certificate, CertificateFiles, server_context

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/healthz"})
"""Probes have no token."""
ALLOWED_FOR: Final = 60.0
"""Seconds for which an accepted token is not reviewed again: as long as the Go picker's."""
REFUSED_FOR: Final = 10.0
"""The same for one that was refused: a right that was just granted counts soon."""
CACHED: Final = 1024
"""Verdicts of one kind that are kept, of some hundred bytes each: refused tokens displace no accepted one."""
AT_ONCE: Final = 4
"""Reviews at the same time, of tokens that were accepted before, and of others; more wait."""
AT_ONCE_OF_PEER: Final = 2
"""Reviews of new tokens for one address: it cannot keep others from being asked about."""
STRANGE_TOKENS: Final = 10
"""This many such tokens of one address are reviewed at once, and one more each second: each costs the API server a request."""
_PEERS: Final = 1024
REVIEW_TIMEOUT: Final = 10.0
_LOG_EVERY: Final = 60.0
_LONGEST_TOKEN: Final = 16 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """`status`: 200 is allowed. `until`: seconds of the clock."""

    status: int
    reason: str
    until: float


@dataclass(slots=True)
class _Address:
    """`left`: how many strange tokens of it may be reviewed, as of `at`."""

    at: float
    left: float = STRANGE_TOKENS
    under_way: int = 0


class MetricsAuth:
    """`check` is a middleware of aiohttp. `clock` returns monotonic seconds."""

    def __init__(self, reviewer: AccessReviews, clock: Callable[[], float] = time.monotonic) -> None:
        self._reviewer = reviewer
        self._clock = clock
        self._allowed: dict[_Asked, _Verdict] = {}
        self._refused: dict[_Asked, _Verdict] = {}
        self._under_way: dict[_Asked, asyncio.Task[_Verdict]] = {}
        self._renewals = asyncio.Semaphore(AT_ONCE)
        self._first_reviews = asyncio.Semaphore(AT_ONCE)
        self._peers: dict[str, _Address] = {}
        self._logged_at = float("-inf")

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS or request.get(ADMITTED, False):
            return await handler(request)
        token = _bearer_token(request)
        if token is None:
            return _refusal(401, "a bearer token is required")
        verdict = await self._verdict(token, request.method.lower(), request.path, request.remote or "")
        return await handler(request) if verdict.status == 200 else _refusal(verdict.status, verdict.reason)

    async def _verdict(self, token: str, verb: str, path: str, address: str) -> _Verdict:
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()  # no token stays in memory
        asked = digest, verb, path
        if (known := self._known(asked)) is not None:
            return known
        task = self._under_way.get(asked)
        if task is None:
            peer = None if asked in self._allowed else self._peer(address)
            if peer is not None and not _may_ask(peer):
                return self._for(
                    0.0, 429, "too many tokens of this address are not accepted; try again in 1 s"
                )
            task = asyncio.create_task(self._ask(asked, token, peer))
            self._under_way[asked] = task
            task.add_done_callback(lambda _: self._under_way.pop(asked, None))
        return await asyncio.shield(task)  # a client that goes ends no review that others wait for

    async def _ask(self, asked: "_Asked", token: str, peer: _Address | None) -> _Verdict:
        if peer is not None:
            peer.under_way += 1
        try:
            async with self._renewals if peer is None else self._first_reviews:
                verdict = await self._review(token, *asked[1:])
        finally:
            if peer is not None:
                peer.under_way -= 1
        if verdict.status == 200:
            _keep(self._allowed, asked, verdict)
        elif verdict.status != 500:
            self._allowed.pop(asked, None)
            _keep(self._refused, asked, verdict)
        if peer is not None and verdict.status != 200:
            peer.left -= 1
        return verdict

    def _peer(self, address: str) -> _Address:
        """The bucket of that address, as of now. The addresses that came first are forgotten."""
        now = self._clock()
        peer = self._peers.pop(address, None) or _Address(now)
        peer.left = min(STRANGE_TOKENS, peer.left + now - peer.at)
        peer.at = now
        if len(self._peers) >= _PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[address] = peer
        return peer

    def _known(self, asked: "_Asked") -> _Verdict | None:
        verdict = self._allowed.get(asked) or self._refused.get(asked)
        return verdict if verdict is not None and verdict.until > self._clock() else None

    async def _review(self, token: str, verb: str, path: str) -> _Verdict:
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT):
                user = await self._reviewer.user(token)
                if user is None:
                    return self._for(REFUSED_FOR, 401, "the token is not valid")
                if not await self._reviewer.may(user, verb, path):
                    rule = f"a ClusterRole with nonResourceURLs: [{path}], verbs: [{verb}]"
                    return self._for(
                        REFUSED_FOR, 403, f"{quoted(user.name, 253)} may not {verb} {path}; it needs {rule}"
                    )
        except (ReviewError, TimeoutError) as error:
            reason = str(error) or f"no answer of the API server within {REVIEW_TIMEOUT:g} s"
            self._log(reason)
            # bounded: the first line of our own error
            return self._for(0.0, 500, f"the token cannot be checked: {reason.splitlines()[0]}")
        return self._for(ALLOWED_FOR, 200, "")

    def _for(self, seconds: float, status: int, reason: str) -> _Verdict:
        return _Verdict(status, reason, self._clock() + seconds)

    def _log(self, reason: str) -> None:
        now = self._clock()
        if now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            log.warning("the metrics port answers 500, since no token can be checked: %s", reason)


_Asked = tuple[bytes, str, str]
"""The digest of a token, a verb and a path."""


def _may_ask(peer: _Address) -> bool:
    return peer.left >= 1 and peer.under_way < AT_ONCE_OF_PEER


def _keep(verdicts: dict[_Asked, _Verdict], asked: _Asked, verdict: _Verdict) -> None:
    verdicts.pop(asked, None)
    if len(verdicts) >= CACHED:
        del verdicts[next(iter(verdicts))]  # the oldest
    verdicts[asked] = verdict


def _bearer_token(request: web.Request) -> str | None:
    fields = request.headers.getall("Authorization", [])
    if len(fields) != 1:
        return None
    scheme, _, token = fields[0].strip().partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= _LONGEST_TOKEN else None


def _refusal(status: int, reason: str) -> web.Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(status, {})
    return web.Response(status=status, text=f"{reason}\n", headers=headers)


GUARDED: Final = ProgramPage.PATHS | {DECISIONS_PATH, EXPLAIN_PATH}
"""The pages about requests; the picker's other pages tell of workers and counts."""


_OPEN: Final = (
    "the metrics page is served to every client that reaches %s; restrict it with --metrics-endpoint-auth, "
    "--metrics-client-ca-file or a NetworkPolicy"
)


class PageAddresses(NamedTuple):
    """`host:port` of each port; `debug` None: there is none."""

    metrics: str
    debug: str | None = None


@asynccontextmanager
async def serve_metrics(
    app: web.Application,
    settings: Settings,
    start: StartTask,
    reviewed_at: str | None = None,
    debug_app: web.Application | None = None,
    handed: Mapping[str, HandedSocket] = MappingProxyType({}),
) -> AsyncIterator[PageAddresses]:
    """Yields what it listens on; raises ListenError, CertificateError, DiscoveryError, and ValueError for a token file.

    `reviewed_at`: clients need a token, which the API server of this discovery URL reviews; of other URLs, the pod's or
    the kubeconfig's. `debug_app`: the pages of --debug-address. `handed`: as of `served_at`, of the ports `metrics` and `debug`.
    """
    host = settings.metrics_address or settings.host
    tls = _tls(settings, start)
    token = None if settings.debug_token_file is None else token_file(settings.debug_token_file)
    access = Access(GUARDED, token)
    access.guard(app)
    if settings.enable_pprof:
        app.router.add_get("/debug/profile", ProfilePage().get)
    async with AsyncExitStack() as stack:
        if reviewed_at is not None:
            access.reviewed = True
            app.middlewares.append((await stack.enter_async_context(_auth(reviewed_at))).check)
        port, given = settings.metrics_port, handed.get("metrics")
        opened = served_at(host, port, app, "the metrics port", "--metrics-port", tls=tls, handed=given)
        metrics = await stack.enter_async_context(opened)
        if reviewed_at is None and settings.metrics_client_ca_file is None and not is_loopback(host):
            log.info(_OPEN, metrics)
        if settings.debug_address is None or debug_app is None:
            yield PageAddresses(metrics)
            return
        given = handed.get("debug")
        of_debug = DebugPort(
            address=settings.debug_address, guarded=GUARDED, token=token, tls=tls, handed=given
        )
        debug = await stack.enter_async_context(of_debug.served(lambda access: access.guard(debug_app)))
        yield PageAddresses(metrics, debug)


@asynccontextmanager
async def _auth(url: str) -> AsyncIterator["MetricsAuth"]:
    # aiohttp's client, which other pickers do without
    from discovery.kubernetes.api.transport import ClusterTransport
    from discovery.kubernetes.opening import find_cluster, parse_options

    parts = urlsplit(url)
    try:
        cluster = await find_cluster(parse_options(parts, url) if parts.scheme == "kubernetes" else {})
    except DiscoveryError as error:
        # the workers are looked for in the same cluster: the flag is not the cause
        if parts.scheme == "kubernetes":
            raise DiscoveryError(f"{url}: {error}") from error
        problem = (
            f"--metrics-endpoint-auth: {error}; without an API server give --metrics-endpoint-auth=false"
        )
        raise DiscoveryError(problem) from error
    async with aclosing(ClusterTransport(cluster)) as transport:
        yield MetricsAuth(AccessReviews(transport))


def _tls(settings: Settings, start: StartTask) -> ssl.SSLContext | None:
    if settings.metrics_cert_dir is None:
        return None
    folder, flag = settings.metrics_cert_dir, "--metrics-cert-dir"
    files = CertificateFiles(folder, settings.metrics_client_ca_file, flag, "--metrics-client-ca-file")
    served = Certificate(certificate.read(folder, flag), client_ca=files.read_client_ca())
    start(served.reload_when_changed(files))
    return server_context(served, TlsRules(settings.tls.minimum), protocol="http/1.1")
