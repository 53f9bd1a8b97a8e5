"""etcd's errors, by its own texts."""

import socket

import pytest

from discovery.errors import DiscoveryError, ForbiddenError
from discovery.etcd.connection import LEASE_KEEP_ALIVE, EtcdConnection
from discovery.etcd.errors import (
    CompactedRevisionError,
    EtcdTokenError,
    EtcdUnavailableError,
    EtcdWithoutUsersError,
    LeaseExpiredError,
    TooLargeAnswerError,
    classify,
    remedy,
)
from discovery.etcd.messages.etcd_pb2 import LeaseKeepAliveRequest


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", EtcdUnavailableError),
        ("", "etcdserver: no leader", EtcdUnavailableError),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", EtcdUnavailableError),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdUnavailableError),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 4)", TooLargeAnswerError),
        (
            "OUT_OF_RANGE",
            "etcdserver: mvcc: required revision has been compacted",
            CompactedRevisionError,
        ),
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseExpiredError),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", EtcdTokenError),
        ("", "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", EtcdTokenError),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", EtcdTokenError),
        ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", EtcdWithoutUsersError),
        ("PERMISSION_DENIED", "etcdserver: permission denied", ForbiddenError),
        ("PERMISSION_DENIED", "a proxy's words", ForbiddenError),
    ],
)
def test_what_an_error_means(code: str, text: str, error: type[DiscoveryError]) -> None:
    assert classify(code, text) is error


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


async def test_a_member_that_only_accepts_connections_is_silent() -> None:
    """As a frozen one: gRPC itself waits 20 s for its first frame, longer than a lease lasts."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        connection = EtcdConnection(f"127.0.0.1:{frozen.getsockname()[1]}", None)
        try:
            with pytest.raises(EtcdUnavailableError, match="no answer within 0.5 s"):
                await connection.ask(LEASE_KEEP_ALIVE, LeaseKeepAliveRequest(ID=1), (), 0.5)
        finally:
            await connection.abort()
