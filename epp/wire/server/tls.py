"""The TLS context of a server, for HTTP/2 by default (RFC 9113 9.2); serves a reloaded certificate to the next client."""

import logging
import ssl
from functools import partial

from epp.config.tls_rules import TlsRules
from epp.wire import certificate
from epp.wire.certificate import Certificate

log = logging.getLogger(__name__)


def server_context(served: Certificate, rules: TlsRules, protocol: str = "h2") -> ssl.SSLContext:
    """`protocol` is offered by ALPN.

    asyncio takes one context when a server starts. Its `sni_callback` runs in each handshake, also without SNI, and
    switches to the context of the current certificate and client CA.
    """
    make = partial(_context, served, rules, protocol)
    current, serving = make(), make()

    def renew() -> None:
        nonlocal current
        try:
            current = make()
        except OSError as error:  # ssl.SSLError, or no free descriptor for the file of the certificate
            log.warning("certificate not reloaded, the old one stays in use: %s", error.strerror)

    def select_context(connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        connection.context = current

    serving.sni_callback = select_context
    served.on_change.append(renew)
    return serving


def _context(served: Certificate, rules: TlsRules, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    rules.apply(context)
    context.set_alpn_protocols([protocol])
    certificate.load(context, served.pair, served.client_ca)
    return context
