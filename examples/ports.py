"""Finds free TCP ports for programs that cannot choose one themselves."""

import contextlib
import random
import socket


def free_port() -> int:
    """Returns a port of 127.0.0.1 below Linux's ephemeral range, so that no connection takes it before the program does."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
