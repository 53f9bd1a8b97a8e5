"""A TLS context of a server, for HTTP/2 by default (RFC 9113 9.2), that serves another certificate as soon as there is one."""

import logging
import ssl
from functools import partial

from epp.config.tls_rules import TlsRules
from epp.wire import certificate
from epp.wire.certificate import Certificate

log = logging.getLogger(__name__)


def server_context(
    served: Certificate, client_ca: bytes | None, rules: TlsRules, protocol: str = "h2"
) -> ssl.SSLContext:
    """`protocol` is what ALPN offers; `client_ca` is PEM: clients must show a certificate of it."""
    make = partial(_context, served, client_ca, rules, protocol)
    current, serving = make(), make()

    def renew() -> None:
        nonlocal current
        try:
            current = make()
        except OSError as error:  # ssl.SSLError is one; another is that this process has too many files open
            log.warning("the certificate stays as it was: %s", error.strerror)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        connection.context = current

    serving.sni_callback = choose
    served.on_change.append(renew)
    return serving


def _context(served: Certificate, client_ca: bytes | None, rules: TlsRules, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.apply(context)
    context.set_alpn_protocols([protocol])
    certificate.load(context, served.pair, client_ca)
    return context
