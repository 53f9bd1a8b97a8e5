"""Hosts and ports as text: `host:port`, IPv6 in brackets as RFC 3986 has it (pure)."""

import re
from ipaddress import ip_address
from typing import Final

from runtime.quoting import quoted

_LABEL: Final = re.compile(r"[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?", re.ASCII)
_LONGEST: Final = 300
"""Characters of an address that an error quotes: a host name has 253."""


def authority(host: str, port: int) -> str:
    """`host:port`."""
    return f"{in_brackets(host)}:{port}"


def in_brackets(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def split_authority(text: str, *, least_port: int = 1, form: str = "host:port") -> tuple[str, int]:
    """The host, without brackets, and the port; ValueError names what is wrong. The host is not looked into.

    `form`: what the text is called in the error.
    """
    shown = quoted(text, _LONGEST)
    if "://" in text:
        raise ValueError(f"{shown} is a URL; expected {form}")
    host, _, port = text.rpartition(":")
    has_brackets = host.startswith("[") and host.endswith("]")
    if not has_brackets and ":" in host:
        raise ValueError(f"{shown} is not {form}: an IPv6 address needs brackets, as in [address]:port")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not least_port <= int(port) <= 65535:
        raise ValueError(f"{shown} is not {form} with a port from {least_port} to 65535")
    if has_brackets and ":" not in host:
        raise ValueError(f"{shown}: {host[1:-1]!r} in brackets is not an IPv6 address")
    return (host[1:-1] if has_brackets else host), int(port)


def check_host(text: str) -> str:
    """The IP address or host name, in lower case; ValueError says why it is neither (RFC 1123, RFC 5890)."""
    host = text.lower()
    if is_ip(host):
        if "%" in host:
            raise ValueError(
                f"the zone %{host.partition('%')[2]} means something on one machine only; give an address without it"
            )
        return host
    shown = quoted(text, _LONGEST)
    if ":" in host:
        raise ValueError(f"{shown} is not an IPv6 address")
    try:
        written = host.encode("idna").decode()
    except UnicodeError as error:
        # as CPython 3.13, 3.11, 3.12 have it
        why = getattr(error, "reason", None) or error.__cause__ or error
        raise ValueError(f"{shown} is not a host name: {why}") from error
    labels = written.removesuffix(".").split(".")
    if len(written) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
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
    """Whether only its own machine reaches it there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
