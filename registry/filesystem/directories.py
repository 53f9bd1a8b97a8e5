"""Making the directories that workers write to: each as open as the root, and a reason where that is impossible."""

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

_OPENNESS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISGID | stat.S_ISVTX


def make_component(named_root: Path | None, key: ComponentKey) -> CheckedDirectory:
    """The directory of one component, made where it is missing. RootError says why it cannot be written to.

    A root that was named must exist, the default one is made for this user alone (0700).
    """
    root = find_root(named_root) or _make_root(default_root())
    above = root
    for path in (root.path / key.namespace, root.path / key.namespace / key.component):
        above = _make(path, root, above)
    _check_writable(above)
    return check_directory(above.path, root)


def file_mode(level: CheckedDirectory, *, for_all_writers: bool = False) -> int:
    """The permission bits of a file there: read by whoever may read the directory, written by its owner, or by all
    who may write to the directory.
    """
    others = stat.S_IRGRP | stat.S_IROTH | (stat.S_IWGRP if for_all_writers else 0)
    return stat.S_IRUSR | stat.S_IWUSR | (level.mode & others)


def _make_root(root: Path) -> CheckedDirectory:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return check_root(root)
    except OSError as error:
        raise RootError(f"the root {root} cannot be made: {error.strerror}") from error


def _make(path: Path, root: CheckedDirectory, above: CheckedDirectory) -> CheckedDirectory:
    with suppress(FileNotFoundError):
        return check_directory(path, root)
    try:
        _check_writable(above)
        with suppress(FileExistsError):  # somebody registers at the same time
            path.mkdir(mode=0o700)
            path.chmod(root.mode & _OPENNESS)  # not what this process's umask leaves of it
        return check_directory(path, root)
    except OSError as error:
        raise RootError(f"the directory {path} cannot be made: {error.strerror}") from error


def _check_writable(level: CheckedDirectory) -> None:
    for pause in (0.01, 0.1, 0.0):  # whoever makes it opens it to the group a moment later
        if os.access(level.path, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return
        time.sleep(pause)
    me = user_name(os.geteuid())
    said = f"{level.path} is there, but {me} may not write to it"
    if os.statvfs(level.path).f_flag & os.ST_RDONLY:
        raise RootError(f"{said}: its file system is mounted read-only")
    said += f" (it belongs to {user_name(level.uid)} and {group_name(level.gid)}, mode {level.mode:o})"
    if level.is_group_writable:
        raise RootError(f"{said}: make this user a member of {group_name(level.gid)}")
    raise RootError(
        f"{said}: to share it with that group, chmod g+ws {level.path}; a root for several users has mode 2775 "
        "(chgrp GROUP ROOT, chmod 2775 ROOT)"
    )
