"""etcd's errors, by its own texts."""

import pytest

from discovery.etcd.faults import EtcdFault, classify, remedy


@pytest.mark.parametrize(
    ("code", "text", "fault"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", EtcdFault.UNAVAILABLE),
        ("", "etcdserver: no leader", EtcdFault.UNAVAILABLE),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", EtcdFault.UNAVAILABLE),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdFault.UNAVAILABLE),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 4)", EtcdFault.TOO_LARGE),
        (
            "OUT_OF_RANGE",
            "etcdserver: mvcc: required revision has been compacted",
            EtcdFault.COMPACTED,
        ),
        ("NOT_FOUND", "etcdserver: requested lease not found", EtcdFault.NO_LEASE),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", EtcdFault.TOKEN),
        ("", "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", EtcdFault.TOKEN),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", EtcdFault.TOKEN),
        ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", EtcdFault.NO_AUTH),
        ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdFault.FORBIDDEN),
        ("PERMISSION_DENIED", "a proxy's words", EtcdFault.FORBIDDEN),
    ],
)
def test_what_an_error_means(code: str, text: str, fault: EtcdFault) -> None:
    assert classify(code, text) is fault


CANNOT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:2379: "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("etcdserver: permission denied", "readwrite to register"),
        (f"{CANNOT}Socket closed", "speak TLS only"),
        (f"{CANNOT}Handshake read failed (Socket closed)", "speak no TLS"),
        (
            f"{CANNOT}SSL_ERROR_SSL: error:1:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: expired",
            "the authority",
        ),
    ],
)
def test_what_to_do_about_it(text: str, words: str) -> None:
    assert words in (remedy(text) or "")


@pytest.mark.parametrize("text", ["Socket closed", "etcdserver: no leader", f"{CANNOT}Connection refused"])
def test_of_what_passes_nothing_is_advised(text: str) -> None:
    """An etcd that ends closes its sockets too."""
    assert remedy(text) is None
