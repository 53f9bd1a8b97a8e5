"""The least TLS version and the cipher suites: translates the Go picker's flags to OpenSSL's names (pure)."""

import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from adsum.quoting import quoted

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


_PROHIBITED: Final = frozenset(
    [
        *(f"TLS_ECDHE_{key}_WITH_{suite}" for key in ("ECDSA", "RSA") for suite in (
            "AES_128_CBC_SHA", "AES_256_CBC_SHA", "AES_128_CBC_SHA256", "RC4_128_SHA",
        )),
        *(f"TLS_RSA_WITH_{suite}" for suite in (
            "RC4_128_SHA", "3DES_EDE_CBC_SHA", "AES_128_CBC_SHA", "AES_256_CBC_SHA", "AES_128_CBC_SHA256",
            "AES_128_GCM_SHA256", "AES_256_GCM_SHA384",
        )),
        "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    ]
)  # fmt: skip
"""The other suites that Go knows (crypto/tls, CipherSuites and InsecureCipherSuites)."""


@dataclass(frozen=True, slots=True)
class TlsRules:
    """`ciphers`: OpenSSL's names of TLS 1.2 suites; empty means OpenSSL's default. `remarks`: what of the flags has no effect."""

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_flags(cls, version: str | None, suites: str | None) -> "TlsRules":
        """Parse the values of both flags, empty as in Go: not given. Raises ValueError."""
        minimum = minimum_version(version) if version else ssl.TLSVersion.TLSv1_2
        remarks = [f"--tls-min-version {version}: {_WHY_1_2}"] if version in _TOO_OLD else []
        names = suite_names(suites or "")
        ciphers = tuple(_SUITES[name] for name in names if name in _SUITES)
        remarks += _suite_remarks(names)
        if names and not ciphers:  # a client with TLS 1.2 could use none of them
            minimum = ssl.TLSVersion.TLSv1_3
        return cls(minimum, ciphers, tuple(remarks))

    def without_tls(self) -> "TlsRules":
        """The same rules, with the remark that the gRPC port has no TLS to which they apply."""
        remark = "--tls-min-version and --tls-cipher-suites: the gRPC port has no TLS, since --secure-serving is false"
        return replace(self, remarks=(*self.remarks, remark))

    def apply(self, context: ssl.SSLContext) -> None:
        """Configure a context; raises ssl.SSLError if OpenSSL has none of the ciphers."""
        context.minimum_version = self.minimum
        if self.ciphers:
            context.set_ciphers(":".join(self.ciphers))

    @property
    def needs_rsa(self) -> bool:
        """Whether clients with TLS 1.2 can use RSA keys only."""
        return bool(self.ciphers) and not any("-ECDSA-" in name for name in self.ciphers)

    def check_key(self, is_rsa: bool) -> None:
        """Raise ValueError if no suite fits the certificate's key: no client with TLS 1.2 could be served."""
        kind, other = ("RSA", "ECDSA") if is_rsa else ("ECDSA", "RSA")
        fits = any(f"-{kind}-" in name for name in self.ciphers)
        if self.ciphers and not fits and self.minimum is ssl.TLSVersion.TLSv1_2:
            raise ValueError(
                f"--tls-cipher-suites: all suites are for {other} keys, but the certificate has a key of another kind; expected "
                f"one of TLS_ECDHE_{kind}_WITH_..., or --tls-min-version VersionTLS13, or another --cert-path"
            )


_WHY_1_2: Final = "TLS 1.2 is the least that HTTP/2 allows (RFC 9113, 9.2), so it is the least here"


def minimum_version(name: str) -> ssl.TLSVersion:
    """Parse Go's name of a TLS version; raises ValueError. TLS 1.2 for older ones."""
    if name in _TOO_OLD:
        return ssl.TLSVersion.TLSv1_2
    if name not in _VERSIONS:
        raise ValueError(f"{quoted(name)} is not a TLS version; expected VersionTLS12 or VersionTLS13")
    return _VERSIONS[name]


def suite_names(text: str) -> list[str]:
    """Go's names in a comma-separated list; raises ValueError for a name that Go does not know."""
    # bounded: the operator's flag
    names = [name for part in text.split(",") if (name := part.strip())]
    for name in names:
        if name not in _SUITES and name not in _OF_TLS_1_3 and name not in _PROHIBITED:
            raise ValueError(f"{name[:60]!r} is not a cipher suite; expected some of: {_listed(_SUITES)}")
    return names


def _suite_remarks(names: Sequence[str]) -> Iterator[str]:
    if left_out := [name for name in names if name in _PROHIBITED]:
        yield f"--tls-cipher-suites: HTTP/2 prohibits {_listed(left_out)} (RFC 9113, appendix A), so they are not offered"
    if (newer := _OF_TLS_1_3.intersection(names)) and newer != _OF_TLS_1_3:
        yield (
            f"--tls-cipher-suites: all suites of TLS 1.3 are offered, not only {_listed(sorted(newer))}: neither Go nor "
            "OpenSSL's Python module can select them"
        )


def _listed(names: Sequence[str] | dict[str, str]) -> str:
    return ", ".join(names)
