"""Finds the root directory and checks that only its owner, or a group that it shares the root with, can write there.

Anybody who can write to the root or below it can announce workers and so receive requests. So the permissions of each level are
checked. A root belongs to one owner (0700, 0755), or is shared with a group on purpose: then it has the setgid bit
(2775, 2770), by which new files and directories inherit its group (inode(7)). A group whose only member is the owner
counts as the owner. Readers create nothing.
"""

import errno
import grp
import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from discovery.errors import AdsumError
from discovery.source import ComponentKey


class RootError(AdsumError):
    """The root directory is missing or unsafe. The text says why and what to do."""


def file_path(url: str) -> Path | None:
    """The path of a `file:` URL; None for the default root. Raises ValueError for a host: `file://tmp/x` is a typing error."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{url!r} names the host {parts.netloc!r}; a path needs three slashes: file:///path")
    return Path(unquote(parts.path)) if parts.path not in ("", "/") else None


@dataclass(frozen=True, slots=True)
class CheckedDirectory:
    """A directory that passed the checks, with its owner, group and permission bits."""

    path: Path
    uid: int
    gid: int
    mode: int

    @property
    def is_group_writable(self) -> bool:
        return bool(self.mode & stat.S_IWGRP)

    def allows_owner(self, uid: int) -> bool:
        """Whether files of this user belong here. In a shared directory the kernel has checked the group already."""
        return self.is_group_writable or uid in (self.uid, 0)


def default_root() -> Path:
    """`$ADSUM_ROOT`, else `$XDG_RUNTIME_DIR/adsum`, else `adsum-<uid>` in the temporary directory."""
    if root := os.environ.get("ADSUM_ROOT"):
        return Path(root)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "adsum"
    # anybody can create this name first; `check_root` refuses a directory or a link of another user
    return Path(tempfile.gettempdir()) / f"adsum-{os.getuid()}"


def find_root(named: Path | None) -> CheckedDirectory | None:
    """The checked root; None if the default root does not exist yet. Raises RootError, also if a named root is missing."""
    root = named or default_root()
    try:
        return check_root(root)
    except FileNotFoundError as error:
        if named is None:
            return None
        raise RootError(f"the root {root} does not exist: mkdir -m 700 {root}, or mount its disk") from error


def find_component(root: CheckedDirectory, key: ComponentKey) -> CheckedDirectory | None:
    """The directory of one component, each level checked; None if it does not exist yet. Raises RootError."""
    try:
        return check_directory(check_directory(root.path / key.namespace, root).path / key.component, root)
    except FileNotFoundError:
        return None


def check_root(root: Path) -> CheckedDirectory:
    """Raises RootError if it is not a directory or others could announce workers in it; FileNotFoundError."""
    found = _stat(root)
    if stat.S_ISLNK(found.st_mode):
        if found.st_uid not in (os.getuid(), 0):
            raise RootError(
                f"the root {root} is a link of {user_name(found.st_uid)}, who can turn it elsewhere: "
                "name the directory itself, or another root in $ADSUM_ROOT"
            )
        found = _stat(root, follow=True)
    level = _checked_directory(root, found)
    if level.is_group_writable and not level.mode & stat.S_ISGID:
        group = group_name(level.gid)
        raise RootError(
            f"the root {root} can be written by {group}: chmod g-w {root} if its workers are one user's, "
            f"chmod g+s {root} if all of {group} may announce workers"
        )
    if level.uid not in (os.getuid(), 0) and not (level.is_group_writable and _is_member(level.gid)):
        raise RootError(
            f"the root {root} belongs to {user_name(level.uid)}: name a root of your own in $ADSUM_ROOT, or share one "
            f"with a group that both are in (chgrp GROUP {root}, chmod 2775 {root})"
        )
    return level


def check_directory(path: Path, root: CheckedDirectory) -> CheckedDirectory:
    """A directory below the root. Raises RootError if somebody can write there who cannot write to the root;
    FileNotFoundError.
    """
    # no link is followed here: whoever can write to its target could announce workers under this root
    found = _stat(path)
    if stat.S_ISLNK(found.st_mode):
        raise RootError(
            f"{path} is a link of {user_name(found.st_uid)}: below a root only directories are followed"
        )
    level = _checked_directory(path, found)
    if level.is_group_writable and not (root.is_group_writable and level.gid == root.gid):
        raise RootError(
            f"the directory {path} can be written by {group_name(level.gid)}, the root {root.path} cannot: "
            f"chmod g-w {path}"
        )
    if not root.is_group_writable and level.uid not in (root.uid, os.getuid(), 0) and root.uid != 0:
        raise RootError(
            f"the directory {path} belongs to {user_name(level.uid)}, the root {root.path} to "
            f"{user_name(root.uid)}: chown one of them"
        )
    return level


def user_name(uid: int) -> str:
    """For messages. In containers many users have no name."""
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


def group_name(gid: int) -> str:
    try:
        return f"group {gid} ({grp.getgrgid(gid).gr_name})"
    except KeyError:
        return f"group {gid}"


def _stat(path: Path, *, follow: bool = False) -> os.stat_result:
    try:
        return os.stat(path, follow_symlinks=follow)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise  # temporary: no descriptors left, or an I/O error of the disk
        raise RootError(f"{path} cannot be read by {user_name(os.getuid())}: {error.strerror}") from error


def _checked_directory(path: Path, found: os.stat_result) -> CheckedDirectory:
    if not stat.S_ISDIR(found.st_mode):
        raise RootError(f"{path} is not a directory")
    if found.st_mode & stat.S_IWOTH:
        raise RootError(
            f"the directory {path} can be written by everyone on this machine, so anyone could announce a worker: "
            f"chmod o-w {path}, or name another root in $ADSUM_ROOT"
        )
    mode = stat.S_IMODE(found.st_mode)
    if not mode & stat.S_ISGID and _is_private_group(found.st_uid, found.st_gid):
        # with umask 002 and a group of one's own, all new directories are group-writable
        mode &= ~stat.S_IWGRP
    return CheckedDirectory(path, found.st_uid, found.st_gid, mode)


def _is_private_group(uid: int, gid: int) -> bool:
    """Whether the group is the owner's own and has no other member: many distributions make one for each user."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    own = (user.pw_gid, user.pw_name) == (group.gr_gid, group.gr_name)
    return own and set(group.gr_mem) <= {user.pw_name}


def _is_member(gid: int) -> bool:
    return gid == os.getegid() or gid in os.getgroups()
