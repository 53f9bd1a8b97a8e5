"""Ports for servers that start later, or that never do."""

import contextlib
import random
import socket


def free_port() -> int:
    """Returns a port below Linux's ephemeral range, so that no connection of another test takes it meanwhile."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
