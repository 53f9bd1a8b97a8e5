"""File descriptors: as many as this process may have, and one that is kept for when there are no more."""

import contextlib
import os
import resource
import socket
from typing import Final

_MOST: Final = 1_048_576
"""More than any of our programs can use: a hard limit may be 10⁹."""
_PART: Final = 4
"""Of the descriptors, one in so many is for one port: the rest is for other ports, workers and files."""


def raise_limit() -> None:
    """Let this process have as many as it may: the soft limit is 1,024 on most machines, for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a sandbox forbids it: it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(wanted: int) -> int:
    """That many, or fewer where this process may not have four times as many descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // _PART))


class Spare:
    """A descriptor that is given up to accept, and to close, a connection for which there is none.

    Else it stays in the queue of the kernel, and the socket is readable without end.
    """

    def __init__(self) -> None:
        self._held: int | None = os.open(os.devnull, os.O_RDONLY)

    def turn_away(self, listening: socket.socket) -> bool:
        """Close the first connection that waits; False where even that cannot be done."""
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
