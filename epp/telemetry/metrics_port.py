"""Serves the metrics port, and that of --debug-address: with TLS, client certificates, tokens and the profile page.

Who may see what tells of requests is the rule of `adsum.web.access`, on both ports.
"""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from adsum.addresses import is_loopback
from adsum.serving.pages import served_at
from adsum.tasks import StartTask
from adsum.web.access import Access, token_file
from adsum.web.debug_port import DebugPort
from adsum.web.program_page import ProgramPage
from discovery.errors import DiscoveryError
from epp.config.settings import Settings
from epp.config.tls_rules import TlsRules
from epp.telemetry.decision_pages import DECISIONS_PATH
from epp.telemetry.explain_page import EXPLAIN_PATH
from epp.telemetry.profile import ProfilePage
from epp.wire import certificate
from epp.wire.certificate import Certificate, CertificateFiles, server_context

if TYPE_CHECKING:
    from epp.telemetry.metrics_auth import MetricsAuth

log = logging.getLogger(__name__)


GUARDED: Final = ProgramPage.PATHS | {DECISIONS_PATH, EXPLAIN_PATH}
"""What tells of requests; the picker's other pages tell of workers and counts."""


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
) -> AsyncIterator[PageAddresses]:
    """Yields what it listens on; raises ListenError, CertificateError, DiscoveryError, and ValueError for a token file.

    `reviewed_at`: clients need a token, which the API server of this discovery URL reviews; of other URLs, the pod's or
    the kubeconfig's. `debug_app`: the pages of --debug-address.
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
        opened = served_at(host, settings.metrics_port, app, "the metrics port", "--metrics-port", tls=tls)
        metrics = await stack.enter_async_context(opened)
        if reviewed_at is None and settings.metrics_client_ca_file is None and not is_loopback(host):
            log.info(
                "the metrics page is served to every client that reaches %s; restrict it with --metrics-endpoint-auth, "
                "--metrics-client-ca-file or a NetworkPolicy",
                metrics,
            )
        if settings.debug_address is None or debug_app is None:
            yield PageAddresses(metrics)
            return
        port = DebugPort(address=settings.debug_address, guarded=GUARDED, token=token, tls=tls)
        debug = await stack.enter_async_context(port.served(lambda access: access.guard(debug_app)))
        yield PageAddresses(metrics, debug)


@asynccontextmanager
async def _auth(url: str) -> AsyncIterator["MetricsAuth"]:
    # aiohttp's client, which other pickers do without
    from discovery.kubernetes.api.transport import ClusterTransport
    from discovery.kubernetes.opening import find_cluster, parse_options
    from epp.kubernetes.access_review import AccessReviews
    from epp.telemetry.metrics_auth import MetricsAuth

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
