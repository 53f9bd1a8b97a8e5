"""File locks of a worker: one for its whole life, and the component lock while it registers or cleans up."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from discovery.filesystem.record import COMPONENT_LOCK, is_same_file, open_lock

LOCK_TIMEOUT: Final = 10.0
"""Seconds that a worker waits for the component lock."""


class HeldLock:
    """An exclusive lock on one file, until `release` or the end of this process.

    flock(2): a lock belongs to the open file description, which a forked child shares. It lasts until every copy is
    closed, so a child that keeps its copy would make a dead worker look alive; LOCK_UN on any copy releases it for
    all. Hence a child closes its copy and never unlocks.
    """

    def __init__(self, path: Path, *, mode: int = 0o600) -> None:
        """Create `path`, which must not exist, and lock it. Raises OSError."""
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
        """Whether `path` is still the locked file: False after it was removed or replaced, or after `release`."""
        return self._descriptor >= 0 and is_same_file(self._descriptor, path)

    def release(self) -> None:
        """Close the file, which releases the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


# bounded: weak: the locks that this process holds
_held: Final[WeakSet[HeldLock]] = WeakSet()
"""Module state, because `os.register_at_fork` is for the whole process and cannot be undone."""


def _close_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_in_child)


def _never() -> bool:
    return False


@contextmanager
def component_lock(
    directory: Path,
    *,
    mode: int = 0o600,
    timeout: float = LOCK_TIMEOUT,
    is_cancelled: Callable[[], bool] = _never,
) -> Iterator[None]:
    """Hold the lock under which one process at a time registers or cleans up in `directory`.

    `mode` is the lock file's, if it is created. TimeoutError after `timeout` seconds, or once `is_cancelled()`.
    """
    descriptor = _open_component_lock(directory / COMPONENT_LOCK, mode)
    try:
        deadline = time.monotonic() + timeout
        while not _try_exclusive(descriptor):
            if is_cancelled() or time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{directory / COMPONENT_LOCK} was held by another process for up to {timeout:g} s"
                )
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def _open_component_lock(path: Path, mode: int) -> int:
    # An existing file is opened without O_CREAT: with the sysctl fs.protected_regular, Linux refuses that flag for
    # another user's file in a sticky directory. It is opened for writing where possible: NFS clients emulate flock by
    # byte-range locks (flock(2)), of which an exclusive one needs a descriptor that is open for writing.
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, mode)
        return descriptor
    for pause in (0.001, 0.01, 0.1):  # another worker may be between its open and its fchmod
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
