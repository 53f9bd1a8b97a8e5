"""Reads the key, certificate and client CA of a TLS server, reloads them when they change, or makes a self-signed pair.

`server_context` serves them, for HTTP/2 by default (RFC 9113 9.2).
"""

import asyncio
import contextlib
import datetime
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Never

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from adsum.serving.reloaded_tls import file_stamps
from epp.config.tls_rules import TlsRules

POLL_INTERVAL = 1.0
"""Seconds between two checks whether the files changed. A Kubernetes Secret is updated by replacing symbolic links."""
_PEM = "the text that begins with -----BEGIN"
VALID_FOR = datetime.timedelta(days=3650)

log = logging.getLogger(__name__)


class CertificateError(Exception):
    """A file of a certificate cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    key: bytes = field(repr=False)
    certificate: bytes


class Certificate:
    """The pair that is served now. Each callback in `on_change` is called after something was replaced.

    With `client_ca` (PEM) clients must show a certificate signed by it. `check` raises ValueError for a pair that cannot be
    served.
    """

    def __init__(
        self,
        pair: KeyPair,
        check: Callable[[KeyPair], None] = lambda pair: None,
        client_ca: bytes | None = None,
    ) -> None:
        check(pair)
        self.pair = pair
        self.client_ca = client_ca
        self._check = check
        self.on_change: list[Callable[[], None]] = []

    async def reload_when_changed(self, files: "CertificateFiles", interval: float = POLL_INTERVAL) -> Never:
        """Read the files whenever one changes; never returns. Keeps what is served if the new one cannot be used."""
        seen = files.stamps()
        while True:
            await asyncio.sleep(interval)
            stamp = files.stamps()
            if stamp == seen:
                continue
            seen = stamp
            try:
                pair = self.pair if files.folder is None else read(files.folder, files.flag)
                self._check(pair)
                client_ca = files.read_client_ca()
            except (CertificateError, ValueError) as error:
                log.warning("certificate not reloaded, the old one stays in use: %s", error)
                continue
            renewed, other_ca = pair != self.pair, client_ca != self.client_ca
            self.pair, self.client_ca = pair, client_ca
            if renewed or other_ca:
                for changed in self.on_change:
                    changed()
            if renewed:
                log.info("certificate reloaded from %s: %s", files.folder, _describe(pair))
            if other_ca:
                log.info("client CA reloaded from %s", files.client_ca)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where a Certificate comes from, and the flags that say so. `folder` None: the pair is self-signed."""

    folder: Path | None
    client_ca: Path | None = None
    flag: str = "--cert-path"
    client_ca_flag: str = "--client-ca-file"

    def read_client_ca(self) -> bytes | None:
        """The authority of clients as PEM; None: clients need no certificate. Raises CertificateError."""
        return None if self.client_ca is None else read_ca(self.client_ca, self.client_ca_flag)

    def stamps(self) -> list[tuple[int, int, int]]:
        pair = () if self.folder is None else (self.folder / "tls.key", self.folder / "tls.crt")
        return file_stamps(*pair, *([] if self.client_ca is None else [self.client_ca]))


def _describe(pair: KeyPair) -> str:
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    until = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return f"{certificate.subject.rfc4514_string() or 'no subject'}, serial {certificate.serial_number:x}, until {until}"


def read_ca(path: Path, flag: str = "--client-ca-file") -> bytes:
    """Read the PEM certificates that clients' certificates must be signed with; raises CertificateError."""
    try:
        pem = path.read_bytes()
        x509.load_pem_x509_certificates(pem)
    except OSError as error:
        raise CertificateError(f"{flag}: cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CertificateError(f"{flag}: no PEM certificates in {path}; expected {_PEM}") from error
    return pem


def read(folder: Path, flag: str = "--cert-path") -> KeyPair:
    """Read `tls.key` and `tls.crt`, the keys of a Secret of type kubernetes.io/tls; raises CertificateError."""
    try:
        pair = KeyPair((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())
    except OSError as error:
        raise CertificateError(
            f"{flag}: cannot read {error.filename}: {error.strerror}; expected a folder with tls.crt and tls.key"
        ) from error
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"{flag}: no PEM key and certificate in {folder}; expected {_PEM}, and a key without a password"
        ) from error
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"{flag}: tls.key is not the key of tls.crt in {folder}")
    try:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except ssl.SSLError as error:
        reason = error.reason or error.strerror
        raise CertificateError(f"{flag}: OpenSSL rejects tls.crt in {folder}: {reason}") from error
    return pair


def has_rsa_key(pair: KeyPair) -> bool:
    """Whether the key is RSA. In TLS 1.2 a cipher suite names the kind of key that it works with."""
    return isinstance(x509.load_pem_x509_certificate(pair.certificate).public_key(), rsa.RSAPublicKey)


def load(context: ssl.SSLContext, pair: KeyPair, client_ca: bytes | None = None) -> None:
    """Load `pair`. With `client_ca` (PEM) clients must show a certificate signed by it. Raises ssl.SSLError."""
    with _file(pair.key) as key, _file(pair.certificate) as chain:
        context.load_cert_chain(chain, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        with _file(client_ca) as authorities:
            context.load_verify_locations(authorities)


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[str]:
    """The path of a file with `content`: `ssl.SSLContext.load_cert_chain` takes paths only.

    On Linux the file is in memory. So no key is written to a disk, and a read-only root filesystem is enough.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem"), "wb", buffering=0) as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name


def self_signed(now: datetime.datetime, *, with_rsa: bool = False) -> KeyPair:
    """A new P-256 or RSA pair, which encrypts but proves no identity; the Go picker too serves one by default."""
    key = (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        if with_rsa
        else ec.generate_private_key(ec.SECP256R1())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "endpoint-picker")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + VALID_FOR)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("endpoint-picker")])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(private, certificate.public_bytes(pem))


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
    load(context, served.pair, served.client_ca)
    return context
