"""Whole-file advisory locks (flock(2)): who holds one lives; the kernel lets go when the holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from weakref import WeakSet

from discovery.record import COMPONENT_LOCK

_PATIENCE: Final = 10.0


def open_lock(path: Path) -> int:
    """A descriptor of the lock file, to probe it by; never waits, whatever kind of file it is."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


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
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)


class HeldLock:
    """An exclusive lock on one file, for the life of this process or until `release`.

    A forked child closes its copy of the descriptor (it never unlocks: that would unlock the parent's too), or the
    child would keep a dead worker alive.
    """

    def __init__(self, path: Path) -> None:
        """Create `path`, which must not exist, and lock it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        _held.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            path.unlink(missing_ok=True)
            raise

    def is_at(self, path: Path) -> bool:
        """Whether `path` names the locked file: False after someone removed or replaced it, or after `release`."""
        return self._descriptor >= 0 and is_same_file(self._descriptor, path)

    def release(self) -> None:
        """Close the file, which lets go of the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_held: Final[WeakSet[HeldLock]] = WeakSet()
"""Of the whole process, since a fork is of the whole process."""


def _close_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_in_child)


def _never() -> bool:
    return False


@contextmanager
def component_locked(
    directory: Path, *, patience: float = _PATIENCE, given_up: Callable[[], bool] = _never
) -> Iterator[None]:
    """Only one process at a time registers or reaps in `directory`.

    TimeoutError after `patience` seconds, or as soon as the caller has `given_up`.
    """
    descriptor = os.open(directory / COMPONENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + patience
        while not _try_exclusive(descriptor):
            if given_up() or time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{directory / COMPONENT_LOCK} was held by another process for up to {patience:g} s"
                )
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
