"""Creates the directories that workers write to, with the root's permission bits; errors say which bits are missing."""

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

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
