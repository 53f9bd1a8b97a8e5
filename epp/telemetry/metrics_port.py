"""Serves the metrics port, with TLS and client certificates if the flags say so."""

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from epp.config.settings import Settings
from epp.config.tls_rules import TlsRules
from epp.wire import certificate
from epp.wire.certificate import Certificate
from epp.wire.server.tls import server_context
from epp.wire.transport import ListenAddress
from runtime.addresses import is_loopback
from runtime.serving.pages import PageServer
from runtime.serving.sockets import ListenError, listening_sockets

log = logging.getLogger(__name__)

StartTask = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a task that runs as long as the picker."""


@asynccontextmanager
async def serve_metrics(app: web.Application, settings: Settings, start: StartTask) -> AsyncIterator[str]:
    """Yields the `host:port` that it listens on; raises ListenError and CertificateError."""
    host = settings.metrics_address or settings.host
    listen = ListenAddress(host, settings.metrics_port)
    tls = _tls(settings, start)
    try:
        listening = listening_sockets(host, settings.metrics_port)
    except OSError as error:
        raise ListenError(f"{listen.listen_error()} (--metrics-port)") from error
    pages = PageServer(app, listening, "the metrics port", tls=tls)
    try:
        await pages.start()
        address = listen.authority(pages.port)
        if settings.metrics_client_ca_file is None and not is_loopback(host):
            log.info(
                "the metrics page is served to every client that reaches %s; restrict it with --metrics-client-ca-file "
                "or a NetworkPolicy",
                address,
            )
        yield address
    finally:
        await pages.aclose()


def _tls(settings: Settings, start: StartTask) -> ssl.SSLContext | None:
    if settings.metrics_cert_dir is None:
        return None
    ca, flag = settings.metrics_client_ca_file, "--metrics-cert-dir"
    client_ca = certificate.read_ca(ca, "--metrics-client-ca-file") if ca is not None else None
    served = Certificate(certificate.read(settings.metrics_cert_dir, flag))
    start(served.reload_when_changed(settings.metrics_cert_dir, flag=flag))
    return server_context(served, client_ca, TlsRules(settings.tls.minimum), protocol="http/1.1")
