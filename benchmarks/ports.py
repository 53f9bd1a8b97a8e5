"""Finds free TCP ports for programs that cannot choose one themselves."""

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Returns distinct ports of 127.0.0.1 that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
