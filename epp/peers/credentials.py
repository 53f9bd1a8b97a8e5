"""How pickers prove to each other who they are: by the picker's own certificates, by a token that all of them have, or not at all.

Without certificates or a token they speak in plain text, and only on this machine.
"""

import datetime
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Never
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from adsum.addresses import is_loopback, split_authority
from epp.config.settings import Settings
from epp.wire import certificate
from epp.wire.certificate import Certificate, CertificateError, CertificateFiles, KeyPair

LEAST_TOKEN: Final = 32
"""Characters: whoever connects can try tokens offline, so one that people remember is not enough."""
_MOST_TOKEN: Final = 4096
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the group of P-256 (SEC 2, 2.4.2): a private key is less."""
_NAME: Final = "adsum-peer"
_CA_NAME: Final = "adsum-peers"
_FROM, _UNTIL = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)  # fmt: skip
"""No clock has to be right."""


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """`served`: shown to peers, whose own must be signed by its `client_ca`; None: plain text. `secret`: what all peers know."""

    served: Certificate | None
    secret: bytes

    @property
    def seed(self) -> int:
        """64 bits, the same in all pickers, and known to nobody else where they have a secret."""
        return int.from_bytes(hashlib.blake2b(b"prefixes" + self.secret, digest_size=8).digest(), "big")

    def server_name(self) -> str | None:
        """The name that a peer's certificate must have: that of our own, since all pickers have one. None: the address."""
        if self.served is None:
            return None
        own = x509.load_pem_x509_certificate(self.served.pair.certificate)
        try:
            named = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return None
        return next(iter(named.get_values_for_type(x509.DNSName)), None)


def open_credentials(
    settings: Settings, start: Callable[[Coroutine[Any, Any, Never]], None]
) -> PeerCredentials:
    """As the flags say; `start`: the task that reads certificates again. Raises CertificateError, and ValueError where peers
    that are not on this machine would be spoken to in plain text."""
    if settings.peer_token_file is not None:
        token = _read_token(settings.peer_token_file)
        return PeerCredentials(_of_token(token), token)
    if settings.cert_path is not None and settings.client_ca_file is not None and settings.secure_serving:
        files = CertificateFiles(settings.cert_path, settings.client_ca_file)
        authorities = files.read_client_ca()
        served = Certificate(certificate.read(settings.cert_path), client_ca=authorities)
        if settings.enable_cert_reload:
            start(served.reload_when_changed(files))
        return PeerCredentials(served, authorities or b"")
    _check_local(settings.peers or "")
    return PeerCredentials(None, b"")


def _check_local(url: str) -> None:
    scheme, _, rest = url.partition("://")
    if scheme in ("file", "memory"):
        return
    if scheme == "static" and rest and not rest.startswith("/"):
        # bounded: the operator's flag
        hosts = rest.split(",")
        if all(is_loopback(split_authority(host)[0]) for host in hosts):
            return
    where = urlsplit(url).scheme or "the URL"
    raise ValueError(
        f"--peers: pickers that {where} names may be on other machines, and there is neither a token nor a certificate; "
        f"expected --peer-token-file FILE with {LEAST_TOKEN} random characters, or --cert-path with --client-ca-file"
    )


def _read_token(path: Path) -> bytes:
    try:
        token = path.read_bytes()[: _MOST_TOKEN + 1].strip()
    except OSError as error:
        raise CertificateError(f"--peer-token-file: cannot read {path}: {error.strerror}") from error
    if not LEAST_TOKEN <= len(token) <= _MOST_TOKEN:
        raise CertificateError(
            f"--peer-token-file: {path} has {len(token)} characters; expected {LEAST_TOKEN} to {_MOST_TOKEN} random ones"
        )
    return token


def _of_token(token: bytes) -> Certificate:
    """TLS for those who have the token: they can make the key of the authority that signs both sides' certificates.

    So the token itself is never sent, and each connection has keys of its own.
    """
    derived = HKDF(hashes.SHA256(), 48, salt=None, info=b"adsum peers 1").derive(token)
    authority = ec.derive_private_key(int.from_bytes(derived, "big") % (_ORDER - 1) + 1, ec.SECP256R1())
    issuer, key = _named(_CA_NAME), ec.generate_private_key(ec.SECP256R1())
    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    root = _builder(issuer, issuer, authority.public_key()).add_extension(is_authority, critical=True)
    names = x509.SubjectAlternativeName([x509.DNSName(_NAME)])
    leaf = _builder(_named(_NAME), issuer, key.public_key()).add_extension(names, critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pair = KeyPair(private, leaf.sign(authority, hashes.SHA256()).public_bytes(pem))
    return Certificate(pair, client_ca=root.sign(authority, hashes.SHA256()).public_bytes(pem))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(_FROM).not_valid_after(_UNTIL)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
