"""Whole-file advisory locks (flock(2)), looked at: who holds one lives; the kernel lets go when the holder dies."""

import fcntl
import os
from pathlib import Path


def open_lock(path: Path) -> int:
    """A descriptor of the lock file, to probe it by; never waits, whatever kind of file it is, and follows no link."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def is_held(descriptor: int) -> bool:
    """Whether somebody holds the file exclusively: probed by a shared lock, given back at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file, and not one that took its place."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)
