"""The locks that a worker holds: one for its life, and one while it registers or removes what the dead left."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from discovery.filesystem.flock import is_same_file, open_lock
from discovery.filesystem.record import COMPONENT_LOCK

PATIENCE: Final = 10.0
"""Seconds that a worker waits for others that register."""


class HeldLock:
    """An exclusive lock on one file, for the life of this process or until `release`.

    A forked child closes its copy of the descriptor (it never unlocks: that would unlock the parent's too), or the
    child would keep a dead worker alive.
    """

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        """Create `path`, which must not exist, and lock it."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _held.add(self)
        try:
            os.fchmod(self._descriptor, mode)
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
    directory: Path, *, mode: int = 0o600, patience: float = PATIENCE, given_up: Callable[[], bool] = _never
) -> Iterator[None]:
    """Only one process at a time registers or reaps in `directory`. `mode` is for the lock file, if it is made.

    TimeoutError after `patience` seconds, or as soon as the caller has `given_up`.
    """
    descriptor = _open_component_lock(directory / COMPONENT_LOCK, mode)
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


def _open_component_lock(path: Path, mode: int) -> int:
    """Without O_CREAT where it is there: another user's file in a sticky directory cannot be opened with it
    (fs.protected_regular). For writing where that is allowed: NFS locks exclusively only what is open for writing.
    """
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, mode)
        return descriptor
    for pause in (0.001, 0.01, 0.1):  # whoever makes it opens it to others a moment later
        with suppress(PermissionError):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        time.sleep(pause)
    return open_lock(path)


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
