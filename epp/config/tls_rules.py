"""The least TLS version and the cipher suites: translates the Go picker's flags to OpenSSL's names (pure)."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runtime.quoting import quoted

_VERSIONS: Final = {"VersionTLS12": ssl.TLSVersion.TLSv1_2, "VersionTLS13": ssl.TLSVersion.TLSv1_3}
_TOO_OLD: Final = ("VersionTLS10", "VersionTLS11")

_SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Go's names of the TLS 1.2 suites that HTTP/2 allows; RFC 9113, appendix A lists the prohibited ones."""
_OF_TLS_1_3: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
"""OpenSSL offers all three. Neither Go's crypto/tls nor `ssl.SSLContext.set_ciphers` can disable one."""


@dataclass(frozen=True, slots=True)
class TlsRules:
    """`ciphers`: OpenSSL's names of TLS 1.2 suites; empty means OpenSSL's default."""

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: tuple[str, ...] = ()

    @classmethod
    def from_flags(cls, version: str | None, suites: str | None) -> "TlsRules":
        """Parse the values of both flags; raises ValueError."""
        minimum = ssl.TLSVersion.TLSv1_2 if version is None else minimum_version(version)
        names = [] if suites is None else cipher_suites(suites)
        if names and not any(names):  # only suites of TLS 1.3
            return cls(ssl.TLSVersion.TLSv1_3)
        return cls(minimum, tuple(name for name in names if name))

    def apply(self, context: ssl.SSLContext) -> None:
        """Configure a context; raises ssl.SSLError if OpenSSL has none of the ciphers."""
        context.minimum_version = self.minimum
        if self.ciphers:
            context.set_ciphers(":".join(self.ciphers))

    def check_key(self, is_rsa: bool) -> None:
        """Raise ValueError if no suite fits the certificate's key: no client with TLS 1.2 could be served."""
        kind, other = ("RSA", "ECDSA") if is_rsa else ("ECDSA", "RSA")
        fits = any(f"-{kind}-" in name for name in self.ciphers)
        if self.ciphers and not fits and self.minimum is ssl.TLSVersion.TLSv1_2:
            raise ValueError(
                f"--tls-cipher-suites: all suites are for {other} keys, but the certificate has a key of another kind; expected "
                f"one of TLS_ECDHE_{kind}_WITH_..., or --tls-min-version VersionTLS13, or another --cert-path"
            )


def minimum_version(name: str) -> ssl.TLSVersion:
    """Parse Go's name of a TLS version; raises ValueError."""
    if name in _TOO_OLD:
        raise ValueError(
            f"{name!r}: HTTP/2 needs TLS 1.2 (RFC 9113, 9.2); expected VersionTLS12 or VersionTLS13"
        )
    if name not in _VERSIONS:
        raise ValueError(f"{quoted(name)} is not a TLS version; expected VersionTLS12 or VersionTLS13")
    return _VERSIONS[name]


def cipher_suites(text: str) -> list[str]:
    """OpenSSL's names of a comma-separated list, "" for a suite of TLS 1.3; raises ValueError."""
    names = [name for part in text.split(",") if (name := part.strip())]
    if not names:
        raise ValueError(f"{quoted(text)} names no cipher suite; expected some of: {_listed(_SUITES)}")
    for name in names:
        if name not in _SUITES and name not in _OF_TLS_1_3:
            raise ValueError(
                f"{name[:60]!r} is not a suite that HTTP/2 allows (RFC 9113, appendix A); expected some of: "
                f"{_listed(_SUITES)}"
            )
    if (newer := _OF_TLS_1_3.intersection(names)) and newer != _OF_TLS_1_3:
        raise ValueError(
            f"{_listed(sorted(newer))}: suites of TLS 1.3 cannot be selected one by one; name all three or none"
        )
    return [_SUITES.get(name, "") for name in names]


def _listed(names: Sequence[str] | dict[str, str]) -> str:
    return ", ".join(names)
