"""Tests whether somebody holds an advisory lock on a file (flock(2)).

The kernel releases such a lock when all descriptors of its open file description are closed, however the owner ends.
So a held lock proves that the owner lives, without heartbeats or leases. Descriptors that a fork inherits share the
lock: `registry.filesystem.locks` closes them in the child.
"""

import fcntl
import os
from pathlib import Path


def open_lock(path: Path) -> int:
    """Opens the lock file to probe it; follows no symbolic link."""
    # without O_NONBLOCK a FIFO of this name would block the thread until somebody writes to it (fifo(7))
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def is_held(descriptor: int) -> bool:
    """Whether somebody holds an exclusive lock on the file."""
    # a shared lock, so that readers who probe at the same moment do not take each other for the owner
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file: False after it was removed or replaced."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)
