"""Serves the metrics port: with TLS, client certificates, tokens and the profile page, as the flags say."""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from discovery.errors import DiscoveryError
from epp.config.settings import Settings
from epp.config.tls_rules import TlsRules
from epp.telemetry.profile import ProfilePage
from epp.wire import certificate
from epp.wire.certificate import Certificate
from epp.wire.server.tls import server_context
from epp.wire.transport import ListenAddress
from runtime.addresses import is_loopback
from runtime.serving.pages import PageServer
from runtime.serving.sockets import ListenError, listening_sockets
from runtime.tasks import StartTask

if TYPE_CHECKING:
    from epp.telemetry.metrics_auth import MetricsAuth

log = logging.getLogger(__name__)


@asynccontextmanager
async def serve_metrics(
    app: web.Application, settings: Settings, start: StartTask, reviewed_at: str | None = None
) -> AsyncIterator[str]:
    """Yields the `host:port` that it listens on; raises ListenError, CertificateError and DiscoveryError.

    `reviewed_at`: clients need a token, which the API server of this discovery URL reviews; of other URLs, the pod's or
    the kubeconfig's.
    """
    host = settings.metrics_address or settings.host
    listen = ListenAddress(host, settings.metrics_port)
    tls = _tls(settings, start)
    if settings.enable_pprof:
        app.router.add_get("/debug/profile", ProfilePage().get)
    async with AsyncExitStack() as stack:
        if reviewed_at is not None:
            app.middlewares.append((await stack.enter_async_context(_auth(reviewed_at))).check)
        try:
            listening = listening_sockets(host, settings.metrics_port)
        except OSError as error:
            raise ListenError(f"{listen.listen_error()} (--metrics-port)") from error
        pages = PageServer(app, listening, "the metrics port", tls=tls)
        stack.push_async_callback(pages.aclose)
        await pages.start()
        address = listen.authority(pages.port)
        if reviewed_at is None and settings.metrics_client_ca_file is None and not is_loopback(host):
            log.info(
                "the metrics page is served to every client that reaches %s; restrict it with --metrics-endpoint-auth, "
                "--metrics-client-ca-file or a NetworkPolicy",
                address,
            )
        yield address


@asynccontextmanager
async def _auth(url: str) -> AsyncIterator["MetricsAuth"]:
    from discovery.kubernetes.access_review import (
        AccessReviews,
    )  # aiohttp's client, which other pickers do without
    from discovery.kubernetes.opening import find_cluster, parse_options
    from discovery.kubernetes.transport import ClusterTransport
    from epp.telemetry.metrics_auth import MetricsAuth

    parts = urlsplit(url)
    try:
        cluster = await find_cluster(parse_options(parts, url) if parts.scheme == "kubernetes" else {})
    except DiscoveryError as error:
        if (
            parts.scheme == "kubernetes"
        ):  # the workers are looked for in the same cluster: the flag is not the cause
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
    ca, flag = settings.metrics_client_ca_file, "--metrics-cert-dir"
    client_ca = certificate.read_ca(ca, "--metrics-client-ca-file") if ca is not None else None
    served = Certificate(certificate.read(settings.metrics_cert_dir, flag))
    start(served.reload_when_changed(settings.metrics_cert_dir, flag=flag))
    return server_context(served, client_ca, TlsRules(settings.tls.minimum), protocol="http/1.1")
