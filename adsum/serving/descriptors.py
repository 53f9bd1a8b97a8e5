"""Raises the limit of file descriptors, and keeps one in reserve for when there are none left."""

import contextlib
import os
import resource
import socket
from typing import Final

_MAX_DESCRIPTORS: Final = 1_048_576
"""More than any program here can use; some systems have a hard limit of 10⁹."""
_DESCRIPTORS_PER_CONNECTION: Final = 4
"""A port uses at most one in four descriptors: the others are for other ports, workers and files."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard limit. It is 1,024 by default only because select(2) fails beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a sandbox may forbid it; the soft limit then stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit(wanted: int) -> int:
    """`wanted`, or a quarter of the descriptors that this process may have, if that is less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // _DESCRIPTORS_PER_CONNECTION))
    )


class SpareDescriptor:
    """A descriptor in reserve, released to accept and close a connection when there are no others.

    Otherwise the connection would stay in the kernel's queue and the listening socket would stay readable: a busy loop
    (libev's manual, "The special problem of accept()ing when you can't").
    """

    def __init__(self) -> None:
        self._held: int | None = os.open(os.devnull, os.O_RDONLY)

    def reject_next(self, listening: socket.socket) -> bool:
        """Accept and close the first connection in the queue; False if even that fails."""
        self.close()
        try:
            accepted, _ = listening.accept()
        except OSError:
            return False
        else:
            accepted.close()
            return True
        finally:
            with contextlib.suppress(OSError):
                self._held = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
