"""A certificate authority of a cluster that lives for one test."""

import datetime
import ssl
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """`pem` is what clients trust; `server_context` is for a server on 127.0.0.1, or with the name `server`."""

    def __init__(self, name: str, server: str = "") -> None:
        self._names = [x509.DNSName(server) if server else x509.IPAddress(IPv4Address("127.0.0.1"))]
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key.public_key(), authority=True)
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)

    def server_context(self, folder: Path) -> ssl.SSLContext:
        """Key and certificate pass through files in `folder`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        certificate = self._sign(subject, key.public_key(), authority=False)
        (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / "server.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(self._names), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())
