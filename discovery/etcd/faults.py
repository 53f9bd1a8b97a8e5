"""What etcd's errors mean for who asked (pure). The texts are those of etcd's api/v3rpc/rpctypes/error.go."""

from enum import Enum
from typing import Final


class EtcdFault(Enum):
    """UNAVAILABLE: ask again, or another member. TOKEN: authenticate first. FORBIDDEN: somebody must grant a right or
    mend a setting. COMPACTED: the revision is forgotten. NO_LEASE: it expired. TOO_LARGE: the answer is, for us.
    NO_AUTH: the cluster has no users.
    """

    UNAVAILABLE = "unavailable"
    TOKEN = "token"  # noqa: S105  # a kind of fault
    FORBIDDEN = "forbidden"
    COMPACTED = "compacted"
    NO_LEASE = "no lease"
    TOO_LARGE = "too large"
    NO_AUTH = "no authentication"


_BY_TEXT: Final = {
    "etcdserver: mvcc: required revision has been compacted": EtcdFault.COMPACTED,
    "etcdserver: requested lease not found": EtcdFault.NO_LEASE,
    "etcdserver: invalid auth token": EtcdFault.TOKEN,
    "etcdserver: revision of auth store is old": EtcdFault.TOKEN,
    "etcdserver: user name is empty": EtcdFault.TOKEN,
    "etcdserver: authentication is not enabled": EtcdFault.NO_AUTH,
    "etcdserver: authentication failed, invalid user ID or password": EtcdFault.FORBIDDEN,
    "etcdserver: permission denied": EtcdFault.FORBIDDEN,
    "etcdserver: user name not found": EtcdFault.FORBIDDEN,
}


def classify(code: str, text: str) -> EtcdFault:
    """`code`: the name of a gRPC status, "" if unknown. Whatever is not known may pass, so that it is asked again."""
    for known, fault in _BY_TEXT.items():
        if known in text:
            return fault
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in text:  # gRPC's own
        return EtcdFault.TOO_LARGE
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return EtcdFault.FORBIDDEN
    return EtcdFault.UNAVAILABLE


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
"""What to do, by a part of a text; the first that fits. The last ones are grpcio's, of a connection that it could not open."""
_NO_CONNECTION: Final = "failed to connect to all addresses"


def remedy(text: str) -> str | None:
    """What somebody may do about the fault that a gRPC call tells as `text`."""
    for part, advice in _REMEDIES:
        if part in text and (part.startswith("etcdserver") or _NO_CONNECTION in text):
            return advice
    return None
