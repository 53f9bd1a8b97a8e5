"""The errors of a call to etcd, beside `InputFileError`, and advice about each (pure).

The texts are those of etcd's api/v3rpc/rpctypes/error.go.
"""

from collections.abc import Mapping
from typing import Final

from discovery.errors import DiscoveryError, ForbiddenError


class EtcdUnavailableError(DiscoveryError):
    """No member answers, or not with what was asked for; it may pass."""


class EtcdTokenError(EtcdUnavailableError):
    """The token of our authentication is not valid any more."""


class CompactedRevisionError(EtcdUnavailableError):
    """etcd has forgotten the revision that was asked for."""


class TooLargeAnswerError(EtcdUnavailableError):
    """The answer is larger than we accept."""


class LeaseExpiredError(EtcdUnavailableError):
    """etcd does not know the lease any more."""


class EtcdWithoutUsersError(EtcdUnavailableError):
    """Authentication is not enabled in that cluster."""


_BY_TEXT: Final[Mapping[str, type[DiscoveryError]]] = {
    "etcdserver: mvcc: required revision has been compacted": CompactedRevisionError,
    "etcdserver: requested lease not found": LeaseExpiredError,
    "etcdserver: invalid auth token": EtcdTokenError,
    "etcdserver: revision of auth store is old": EtcdTokenError,
    "etcdserver: user name is empty": EtcdTokenError,
    "etcdserver: authentication is not enabled": EtcdWithoutUsersError,
    "etcdserver: authentication failed, invalid user ID or password": ForbiddenError,
    "etcdserver: permission denied": ForbiddenError,
    "etcdserver: user name not found": ForbiddenError,
}


def classify(code: str, text: str) -> type[DiscoveryError]:
    """`code`: the name of a gRPC status, "" if unknown. Whatever is not known may pass, so that it is asked again."""
    for known, error in _BY_TEXT.items():
        if known in text:
            return error
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in text:  # gRPC's own
        return TooLargeAnswerError
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return ForbiddenError
    return EtcdUnavailableError


_REMEDIES: Final = (
    ("etcdserver: permission denied", "its user needs read on the prefix to discover, readwrite to register"),
    (
        "Failed to create security handshaker",
        "cacert=, cert= and key= have to name PEM files, and key= the key of cert=",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "cacert= has to name the authority that signed its certificate"),
    ("Hostname Verification Check failed", "its certificate has to name the host that the URL names"),
    ("TSI_DATA_CORRUPTED", "it may want a client certificate that it trusts: cert= and key="),
    ("Handshake read failed (Socket closed)", "it may speak no TLS: then leave out cacert= and tls=true"),
    ("Socket closed", "it may speak TLS only: then cacert= has to name its authority"),
)
"""Advice by a part of a text; the first that fits. The last ones are grpcio's, of a connection that it could not open."""
_NO_CONNECTION: Final = "failed to connect to all addresses"


def remedy(text: str) -> str | None:
    """Advice about the fault that a gRPC call reports as `text`."""
    for part, advice in _REMEDIES:
        if part in text and (part.startswith("etcdserver") or _NO_CONNECTION in text):
            return advice
    return None
