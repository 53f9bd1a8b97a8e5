"""Finds several free TCP ports for programs that cannot choose one themselves."""

from examples.ports import free_port


def free_ports(count: int) -> list[int]:
    """Returns distinct ports of 127.0.0.1 that were free a moment ago."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
