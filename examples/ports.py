"""Finds free TCP ports for programs that cannot choose one themselves."""

import contextlib
import os
import random
import socket
import sys
from collections import deque
from typing import Final

_MOST_RESERVED: Final = 32
_reserved: Final[deque[int]] = deque()
"""Descriptors of sockets whose names say which ports this process gave to a program that may not listen yet."""


def free_port() -> int:
    """Returns a port of 127.0.0.1 below Linux's ephemeral range, so that no connection takes it before the program does."""
    while True:
        port = random.randrange(10_000, 32_768)
        if reserve(port):
            return port


def reserve(port: int) -> bool:
    """Whether the port is free, and no process of this machine was given it of late: a program takes a while to listen."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        if sys.platform != "linux":  # nothing else has names that end with their process (unix(7), abstract)
            return True
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.closing(name):
            name.bind(f"\0adsum-port-{port}")
            _reserved.append(os.dup(name.fileno()))
        if len(_reserved) > _MOST_RESERVED:
            os.close(_reserved.popleft())
        return True
    return False
