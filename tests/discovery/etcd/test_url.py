"""What an `etcd://` URL says, with etcdctl's environment; and etcd's errors, by its own texts."""

import socket
import subprocess
import sys
from pathlib import Path

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
from discovery.etcd.url import EtcdSettings, EtcdTls, parse_etcd_url


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("etcd://a", EtcdSettings(("a:2379",))),
        ("etcd://a:1,b:2/x/y/", EtcdSettings(("a:1", "b:2"), "/x/y/")),
        ("etcd://[::1]:2379,[::2]/p%20q", EtcdSettings(("[::1]:2379", "[::2]:2379"), "/p q/")),
        ("etcd://a?ttl=30s", EtcdSettings(("a:2379",), ttl=30)),
        ("etcd://a?tls=true", EtcdSettings(("a:2379",), tls=EtcdTls())),
        (
            "etcd://a?cacert=/c&cert=/d&key=/e",
            EtcdSettings(("a:2379",), tls=EtcdTls(Path("/c"), Path("/d"), Path("/e"))),
        ),
        ("etcd://a?user=me&password_file=/p", EtcdSettings(("a:2379",), user="me", password_file=Path("/p"))),
    ],
)
def test_a_url(url: str, settings: EtcdSettings) -> None:
    assert parse_etcd_url(url, {}) == settings


@pytest.mark.parametrize(
    ("url", "environment", "settings"),
    [
        ("etcd:///p", {"ETCDCTL_ENDPOINTS": "http://a:1,b"}, EtcdSettings(("a:1", "b:2379"), "/p/")),
        ("etcd://", {"ETCDCTL_ENDPOINTS": "https://a:1"}, EtcdSettings(("a:1",), tls=EtcdTls())),
        ("etcd://mine", {"ETCDCTL_ENDPOINTS": "https://a:1"}, EtcdSettings(("mine:2379",))),
        ("etcd://a", {"ETCDCTL_CACERT": "/c"}, EtcdSettings(("a:2379",), tls=EtcdTls(Path("/c")))),
        ("etcd://a?tls=false", {"ETCDCTL_CACERT": "/c"}, EtcdSettings(("a:2379",))),
        ("etcd://a", {"ETCDCTL_USER": "me:pw:1"}, EtcdSettings(("a:2379",), user="me", password="pw:1")),
        (
            "etcd://a?user=you",
            {"ETCDCTL_USER": "me:pw", "ETCDCTL_PASSWORD": "other"},
            EtcdSettings(("a:2379",), user="you", password="other"),
        ),
    ],
)
def test_etcdctls_environment(url: str, environment: dict[str, str], settings: EtcdSettings) -> None:
    assert parse_etcd_url(url, environment) == settings


@pytest.mark.parametrize(
    ("url", "environment", "words"),
    [
        ("etcd://", {}, r"no host, and \$ETCDCTL_ENDPOINTS is not set"),
        ("etcd://a:b", {}, "'a:b' is not host:port"),
        ("etcd://http://a", {}, "not host:port"),
        ("etcd://a,a:2379", {}, "a member appears twice"),
        ("etcd://" + ",".join(f"h{n}" for n in range(33)), {}, "more than 32 members"),
        ("etcd://a/x//y", {}, "is not a path"),
        ("etcd://a/x%00y", {}, "is not a path"),
        ("etcd://a/" + "x" * 600, {}, "at most 512"),
        ("etcd://a?ttl=1.5s", {}, "expected whole seconds from 2 to 3600"),
        ("etcd://a?ttl=forever", {}, "expected whole seconds"),
        ("etcd://a?lease=3s", {}, "unknown parameter lease"),
        ("etcd://a?ttl=3s&ttl=4s", {}, "a parameter appears twice"),
        ("etcd://a?tls=yes", {}, "expected true or false"),
        ("etcd://a?cert=/c", {}, "both cert= and key="),
        ("etcd://a?tls=false&cacert=/c", {}, "tls=false excludes cacert="),
        ("etcd://a?user=me", {}, r"has no password: set \$ETCDCTL_PASSWORD"),
        ("etcd://a?password_file=/p", {}, "needs user=NAME"),
        (
            "etcd://a?tls=true",
            {"ETCDCTL_INSECURE_SKIP_TLS_VERIFY": "true"},
            "name the authority: cacert=PATH",
        ),
    ],
)
def test_a_url_that_is_none(url: str, environment: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        parse_etcd_url(url, environment)
    assert "expected etcd://host:2379" in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("etcd://", {"ETCDCTL_ENDPOINTS": "https://root:s3cret@h:2379"}),
        ("etcd://", {"ETCDCTL_ENDPOINTS": "h:2379,root:s3cret@i:2379"}),
        ("etcd://me:s3cret@a", {}),
        ("etcd://a?user=me&password=s3cret", {}),
        ("etcd://a?user=me:s3cret", {}),
        ("etcd://a?passwd=s3cret", {}),
        ("etcd://a:x?password=s3cret", {}),
        ("etcd://h:0?user=root", {"ETCDCTL_PASSWORD": "s3cret"}),
    ],
)
def test_no_password_is_ever_repeated(url: str, environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="etcd://") as refused:
        parse_etcd_url(url, environment)
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(EtcdSettings(("a:1",), user="me", password="s3cret"))


WITHOUT_GRPC = "import sys; sys.modules['grpc'] = None; "


@pytest.mark.parametrize("package", ["discovery", "registry"])
def test_an_etcd_url_without_the_extra_says_what_to_install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT_GRPC}import {package}; {package}.open('etcd://a')"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ValueError: etcd:// cannot be used: the module 'grpc' is not installed; ")
    assert "pip install '.[etcd]'" in last


def test_other_urls_import_no_grpc() -> None:
    program = "import discovery, registry, sys; discovery.open('file:///tmp'); registry.open('file:///tmp'); print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", EtcdUnavailableError),
        ("", "etcdserver: no leader", EtcdUnavailableError),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", EtcdUnavailableError),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdUnavailableError),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 4)", TooLargeAnswerError),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", CompactedRevisionError),
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
