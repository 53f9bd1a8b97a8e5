"""The directories, records and locks that a worker writes, each with the root's permission bits."""

import fcntl
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from discovery.filesystem.record import (
    COMPONENT_LOCK,
    RECORD_SUFFIX,
    TEMPORARY_SUFFIX,
    Record,
    is_same_file,
    open_lock,
)
from discovery.filesystem.root import (
    CheckedDirectory,
    RootError,
    check_directory,
    check_root,
    default_root,
    find_root,
    group_name,
    user_name,
)
from discovery.record import encode_record
from discovery.source import ComponentKey

_PERMISSION_BITS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISGID | stat.S_ISVTX


def create_component_directory(named_root: Path | None, key: ComponentKey) -> CheckedDirectory:
    """The directory of one component, created if it is missing. Raises RootError if it cannot be written to.

    `named_root` must exist; the default root is created with mode 0700.
    """
    root = find_root(named_root) or _create_root(default_root())
    parent = root
    for path in (root.path / key.namespace, root.path / key.namespace / key.component):
        parent = _create_directory(path, root, parent)
    _check_writable(parent)
    return check_directory(parent.path, root)


def file_mode(directory: CheckedDirectory, *, for_all_writers: bool = False) -> int:
    """The mode of a file there: readable as the directory is, writable by its owner, or by all who may write there."""
    others = stat.S_IRGRP | stat.S_IROTH | (stat.S_IWGRP if for_all_writers else 0)
    return stat.S_IRUSR | stat.S_IWUSR | (directory.mode & others)


def _create_root(root: Path) -> CheckedDirectory:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return check_root(root)
    except OSError as error:
        raise RootError(f"the root {root} cannot be created: {error.strerror}") from error


def _create_directory(path: Path, root: CheckedDirectory, parent: CheckedDirectory) -> CheckedDirectory:
    with suppress(FileNotFoundError):
        return check_directory(path, root)
    try:
        _check_writable(parent)
        with suppress(FileExistsError):  # another worker registers at the same time
            path.mkdir(mode=0o700)
            path.chmod(root.mode & _PERMISSION_BITS)  # mkdir applies the umask, chmod does not
        return check_directory(path, root)
    except OSError as error:
        raise RootError(f"the directory {path} cannot be created: {error.strerror}") from error


def _check_writable(directory: CheckedDirectory) -> None:
    for pause in (0.01, 0.1, 0.0):  # another worker may be between its mkdir and its chmod
        if os.access(directory.path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return
        time.sleep(pause)
    me = user_name(os.geteuid())
    problem = f"{directory.path} exists, but {me} may not write to it"
    if os.statvfs(directory.path).f_flag & os.ST_RDONLY:
        raise RootError(f"{problem}: its file system is mounted read-only")
    problem += f" (it belongs to {user_name(directory.uid)} and {group_name(directory.gid)}, mode {directory.mode:o})"
    if directory.is_group_writable:
        raise RootError(f"{problem}: make this user a member of {group_name(directory.gid)}")
    raise RootError(
        f"{problem}: to share it with that group, chmod g+ws {directory.path}; a root for several users has mode 2775 "
        "(chgrp GROUP ROOT, chmod 2775 ROOT)"
    )


def write_record(directory: Path, record: Record, *, mode: int = 0o600) -> None:
    """Write or replace the record, so that readers see the old or the new one, never a part. OSError or ValueError.

    rename(2) is atomic. Without fsync a power cut may lose the record, but then its owner and its lock are gone too.
    """
    encoded = encode_record(record)
    target = directory / f"{record.instance_id}{RECORD_SUFFIX}"
    temporary = temporary_path(directory, record.instance_id)
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            os.fchmod(file.fileno(), mode)  # open applies the umask, fchmod does not
            file.write(encoded)
        temporary.rename(target)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_path(directory: Path, name: str) -> Path:
    """An unused hidden name, which readers skip and the cleanup removes if its writer dies."""
    return directory / f".{name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"


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
