"""Where a worker serves requests, as its metadata say. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from discovery.instance import Instance

_WELL_KNOWN: Final = 1024
"""Ports below belong to the host (RFC 6335 §6): mail, remote shells. Requests must not be steered there by a document."""


def read_port(value: object) -> int | None:
    """A port from 1 to 65535, as a number or in digits; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    return None


def may_name(instance: Instance, port: int) -> bool:
    """Whether a worker's own document may say that it serves there: from 1024 on, and what its source says of it."""
    return port >= _WELL_KNOWN or port == instance.port or port in instance.ports.values()


def serving_port(instance: Instance, document: Mapping[str, Any]) -> int | None:
    """`transport.http.port`; None where the document names none that it may. `Transport` is read alike."""
    transport = document.get("transport") or document.get("Transport")
    http = transport.get("http") if isinstance(transport, Mapping) else None
    port = read_port(http.get("port")) if isinstance(http, Mapping) else None
    return port if port is not None and may_name(instance, port) else None
