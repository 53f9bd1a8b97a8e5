"""A TLS context for HTTP/2 (RFC 9113 9.2) that serves another certificate as soon as there is one."""

import ssl
import tempfile
from pathlib import Path

from epp.certificate import Certificate, KeyPair


def server_context(certificate: Certificate, client_ca: bytes | None) -> ssl.SSLContext:
    """ALPN h2, TLS 1.2 at least; `client_ca` is PEM: clients must show a certificate of it."""
    current = _context(certificate.pair, client_ca)
    serving = _context(certificate.pair, client_ca)

    def renew() -> None:
        nonlocal current
        current = _context(certificate.pair, client_ca)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str, context: ssl.SSLContext) -> None:
        connection.context = current

    serving.sni_callback = choose
    certificate.on_change.append(renew)
    return serving


def _context(pair: KeyPair, client_ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # OpenSSL reads chains from files only; this one is ours alone
        key, chain = Path(folder, "key"), Path(folder, "chain")
        key.write_bytes(pair.key)
        chain.write_bytes(pair.certificate)
        context.load_cert_chain(chain, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca.decode())
    return context
