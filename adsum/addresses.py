"""Parses and writes hosts and ports: `host:port`, with IPv6 addresses in brackets (RFC 3986 §3.2.2) (pure)."""

import re
from ipaddress import ip_address
from typing import Final

from adsum.quoting import quoted

# bounded: at most 253 characters
_LABEL: Final = re.compile(r"[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?", re.ASCII)
_MAX_QUOTED: Final = 300
"""Characters of an address that an error quotes: a host name has at most 253."""


def authority(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"{url_host(host)}:{port}"


def url_host(host: str) -> str:
    """The host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def split_authority(text: str, *, min_port: int = 1, expected: str = "host:port") -> tuple[str, int]:
    """The host, without brackets, and the port. Raises ValueError. Does not validate the host; `check_host` does.

    `expected`: the form that the error asks for.
    """
    shown = quoted(text, _MAX_QUOTED)
    if "://" in text:
        raise ValueError(f"{shown} is a URL; expected {expected}")
    host, _, port = text.rpartition(":")
    has_brackets = host.startswith("[") and host.endswith("]")
    if not has_brackets and ":" in host:
        raise ValueError(f"{shown} is not {expected}: an IPv6 address needs brackets, as in [address]:port")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not min_port <= int(port) <= 65535:
        raise ValueError(f"{shown} is not {expected} with a port from {min_port} to 65535")
    if has_brackets and ":" not in host:
        raise ValueError(f"{shown}: {host[1:-1]!r} in brackets is not an IPv6 address")
    return (host[1:-1] if has_brackets else host), int(port)


def check_host(text: str) -> str:
    """The IP address or host name, in lower case. Raises ValueError if it is neither (RFC 1123, RFC 5890)."""
    host = text.lower()
    if is_ip(host):
        if "%" in host:
            raise ValueError(
                f"the zone %{host.partition('%')[2]} is valid on one machine only; expected an address without zone"
            )
        return host
    shown = quoted(text, _MAX_QUOTED)
    if ":" in host:
        raise ValueError(f"{shown} is not an IPv6 address")
    try:
        encoded = host.encode("idna").decode()
    except UnicodeError as error:
        # CPython 3.13 has `reason`, 3.11 the cause, 3.12 neither
        why = getattr(error, "reason", None) or error.__cause__ or error
        raise ValueError(f"{shown} is not a host name: {why}") from error
    # bounded: the operator's URL or endpoints file
    labels = encoded.removesuffix(".").split(".")
    # such a name cannot exist (RFC 1123 section 2.1), and resolvers read 127.1 as an address
    if labels[-1].isdecimal():
        raise ValueError(f"{shown} is not an IPv4 address: four numbers from 0 to 255")
    if len(encoded) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(
            f"{shown} is not a host name: letters, digits and '-', in parts between dots, at most 253 characters"
        )
    return host


def is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from its own machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
