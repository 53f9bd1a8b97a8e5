"""A TLS context for HTTP/2 (RFC 9113 9.2) that serves another certificate as soon as there is one."""

import logging
import ssl

from epp import certificate
from epp.certificate import Certificate

log = logging.getLogger(__name__)


def server_context(served: Certificate, client_ca: bytes | None) -> ssl.SSLContext:
    """ALPN h2, TLS 1.2 at least; `client_ca` is PEM: clients must show a certificate of it."""
    current = _context(served, client_ca)
    serving = _context(served, client_ca)

    def renew() -> None:
        nonlocal current
        try:
            current = _context(served, client_ca)
        except OSError as error:  # ssl.SSLError is one; another is that this process has too many files open
            log.warning("the certificate stays as it was: %s", error.strerror)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        connection.context = current

    serving.sni_callback = choose
    served.on_change.append(renew)
    return serving


def _context(served: Certificate, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    certificate.load(context, served.pair, client_ca)
    return context
