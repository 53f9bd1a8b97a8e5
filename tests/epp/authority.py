"""A certificate authority for tests."""

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epp.wire.certificate import KeyPair


@dataclass(frozen=True)
class Authority:
    """Signs certificates, as cert-manager does."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = _certificate(name, name, key.public_key()).add_extension(constraints, critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, *names: x509.GeneralName) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(x509.Name([]), self.certificate.subject, key.public_key())
        signed = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = signed.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return KeyPair(pem, chain)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
