"""Counts the TCP connections of this process, from /proc."""

import os
from pathlib import Path


def connected(port: int) -> int:
    """Returns how many IPv4 sockets of this process are connected to that port, including those that are closing."""
    ours = set(filter(None, map(_inode, os.listdir("/proc/self/fd"))))
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    rows = (line.split() for line in lines)
    return sum(row[9] in ours and int(row[2].rpartition(":")[2], 16) == port for row in rows)


def _inode(descriptor: str) -> str | None:
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # gone by now
        return None
    kind, _, rest = target.partition(":")
    return rest.strip("[]") if kind == "socket" else None
