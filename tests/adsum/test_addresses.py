import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adsum.addresses import authority, check_host, is_ip, is_loopback, split_authority, url_host


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [("10.0.0.1", 80, "10.0.0.1:80"), ("::1", 8000, "[::1]:8000"), ("worker.example", 1, "worker.example:1")],
)
def test_an_address_is_written_and_read(host: str, port: int, text: str) -> None:
    assert authority(host, port) == text
    assert split_authority(text) == (host, port)
    assert url_host(host) == text.rpartition(":")[0]


def test_a_port_of_zero_is_any_free_one_where_something_listens() -> None:
    assert split_authority("[::]:0", min_port=0) == ("::", 0)
    with pytest.raises(ValueError, match=r"'\[::\]:0' is not host:port with a port from 1 to 65535"):
        split_authority("[::]:0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not HOST:PORT with a port from 0 to 65535"),
        ("picker", "'picker' is not HOST:PORT with"),
        ("picker:65536", "with a port from 0 to 65535"),
        ("picker:-1", "with a port from 0 to 65535"),
        ("picker:٣", "with a port from 0 to 65535"),
        (":1", "is not HOST:PORT with"),
        ("http://picker:1", "is a URL; expected HOST:PORT"),
        ("::1:1", r"an IPv6 address needs brackets, as in \[address\]:port"),
        ("[::1:1", r"an IPv6 address needs brackets, as in \[address\]:port"),
        ("::1]:1", r"an IPv6 address needs brackets, as in \[address\]:port"),
        ("[picker]:1", "'picker' in brackets is not an IPv6 address"),
        ("[]:1", "'' in brackets is not an IPv6 address"),
        ("9" * 10_000, "is not HOST:PORT"),
    ],
)
def test_what_is_no_address_is_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        split_authority(text, min_port=0, expected="HOST:PORT")
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="[]:/.%0189abF", max_size=20))
def test_nothing_but_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        host, port = split_authority(text)
        assert split_authority(authority(host, port)) == (host, port)
        check_host(host)


@pytest.mark.parametrize(("host", "is_one", "is_own"), [
    ("10.0.0.1", True, False), ("127.0.0.2", True, True), ("::1", True, True), ("localhost", False, True),
    ("localhost.example", False, False), ("", False, False),
])  # fmt: skip
def test_what_a_host_is(host: str, is_one: bool, is_own: bool) -> None:
    assert is_ip(host) is is_one
    assert is_loopback(host) is is_own
