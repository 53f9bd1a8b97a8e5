"""The port that serves requests, read from a worker's metadata. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from discovery.instance import Instance

_FIRST_USER_PORT: Final = 1024
"""Ports below are system ports (RFC 6335 §6): mail, remote shells. No document may direct requests there."""


def read_port(value: object) -> int | None:
    """A port from 1 to 65535, given as an int or in ASCII digits; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    return None


def may_name(instance: Instance, port: int) -> bool:
    """Whether the instance's document may name this port: any from 1024 on, and those that its source lists."""
    return port >= _FIRST_USER_PORT or port == instance.port or port in instance.ports.values()


def serving_port(instance: Instance, document: Mapping[str, Any]) -> int | None:
    """`transport.http.port`, or `Transport.http.port`; None where there is none or the document may not name it."""
    if instance.rank is not None:
        return None  # one document may describe all ranks of a Pod: who selected them names the port of each
    transport = document.get("transport") or document.get("Transport")
    http = transport.get("http") if isinstance(transport, Mapping) else None
    port = read_port(http.get("port")) if isinstance(http, Mapping) else None
    return port if port is not None and may_name(instance, port) else None
