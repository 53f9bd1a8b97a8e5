"""The directories of the filesystem truth: where the root is, and whether only those whom its owner means can write there.

Whoever can write to the root, or to a directory below it, can announce workers. So each level is looked at for itself:
a root is its owner's alone (0700, 0755), or its owner shares it with a group on purpose (the setgid bit: 2775, 2770). A
group that has no member but the owner counts as the owner.
Nothing is made here: readers write nothing.
"""

import errno
import grp
import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from discovery.errors import AdsumError
from discovery.source import ComponentKey


class RootError(AdsumError):
    """The root directory cannot be used. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Level:
    """One directory as it was found: its owner, its group, its permission bits."""

    path: Path
    uid: int
    gid: int
    mode: int

    @property
    def is_shared(self) -> bool:
        """Whether a group may write."""
        return bool(self.mode & stat.S_IWGRP)

    def may_hold(self, uid: int) -> bool:
        """Whether a file of this owner can be here by right: where a group writes the kernel has asked already."""
        return self.is_shared or uid in (self.uid, 0)


def default_root() -> Path:
    """`$ADSUM_ROOT`, else `$XDG_RUNTIME_DIR/adsum`, else a directory of this user's own under the temporary one."""
    if root := os.environ.get("ADSUM_ROOT"):
        return Path(root)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "adsum"
    return Path(tempfile.gettempdir()) / f"adsum-{os.getuid()}"


def find_root(named: Path | None) -> Level | None:
    """The root, checked; None where nobody has made the default one yet. RootError: also if a named one is missing."""
    root = named or default_root()
    try:
        return check_root(root)
    except FileNotFoundError as error:
        if named is None:
            return None
        raise RootError(f"the root {root} does not exist: mkdir -m 700 {root}, or mount its disk") from error


def find_component(root: Level, key: ComponentKey) -> Level | None:
    """The directory of one component, each level checked; None where nobody has made it yet."""
    try:
        return check_level(check_level(root.path / key.namespace, root).path / key.component, root)
    except FileNotFoundError:
        return None


def check_root(root: Path) -> Level:
    """RootError if it is no directory, or if others could announce workers in it; FileNotFoundError."""
    found = _look(root)
    if stat.S_ISLNK(found.st_mode):
        if found.st_uid not in (os.getuid(), 0):
            raise RootError(
                f"the root {root} is a link of {user_name(found.st_uid)}, who can turn it elsewhere: "
                "name the directory itself, or another root in $ADSUM_ROOT"
            )
        found = _look(root, follow=True)
    level = _directory(root, found)
    if level.is_shared and not level.mode & stat.S_ISGID:
        group = group_name(level.gid)
        raise RootError(
            f"the root {root} can be written by {group}: chmod g-w {root} if its workers are one user's, "
            f"chmod g+s {root} if all of {group} may announce workers"
        )
    if level.uid not in (os.getuid(), 0) and not (level.is_shared and _is_member(level.gid)):
        raise RootError(
            f"the root {root} belongs to {user_name(level.uid)}: name a root of your own in $ADSUM_ROOT, or share one "
            f"with a group that both are in (chgrp GROUP {root}, chmod 2775 {root})"
        )
    return level


def check_level(path: Path, root: Level) -> Level:
    """A directory below the root. RootError if it is none, or if somebody can write there who cannot write to the
    root; FileNotFoundError.
    """
    found = _look(path)
    if stat.S_ISLNK(found.st_mode):
        raise RootError(
            f"{path} is a link of {user_name(found.st_uid)}: below a root only directories are followed"
        )
    level = _directory(path, found)
    if level.is_shared and not (root.is_shared and level.gid == root.gid):
        raise RootError(
            f"the directory {path} can be written by {group_name(level.gid)}, the root {root.path} cannot: "
            f"chmod g-w {path}"
        )
    if not root.is_shared and level.uid not in (root.uid, os.getuid(), 0) and root.uid != 0:
        raise RootError(
            f"the directory {path} belongs to {user_name(level.uid)}, the root {root.path} to "
            f"{user_name(root.uid)}: chown one of them"
        )
    return level


def user_name(uid: int) -> str:
    """For messages; many users have no name, in a container most of them."""
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


def group_name(gid: int) -> str:
    try:
        return f"group {gid} ({grp.getgrgid(gid).gr_name})"
    except KeyError:
        return f"group {gid}"


def _look(path: Path, *, follow: bool = False) -> os.stat_result:
    try:
        return os.stat(path, follow_symlinks=follow)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise  # this process, or this disk, cannot look just now
        raise RootError(f"{path} cannot be read by {user_name(os.getuid())}: {error.strerror}") from error


def _directory(path: Path, found: os.stat_result) -> Level:
    if not stat.S_ISDIR(found.st_mode):
        raise RootError(f"{path} is not a directory")
    if found.st_mode & stat.S_IWOTH:
        raise RootError(
            f"the directory {path} can be written by everyone on this machine, so anyone could announce a worker: "
            f"chmod o-w {path}, or name another root in $ADSUM_ROOT"
        )
    mode = stat.S_IMODE(found.st_mode)
    if not mode & stat.S_ISGID and _is_private_group(found.st_uid, found.st_gid):
        mode &= ~stat.S_IWGRP  # where the umask is 002 all that this user makes is so
    return Level(path, found.st_uid, found.st_gid, mode)


def _is_private_group(uid: int, gid: int) -> bool:
    """Whether the group is the owner's own and has no other member, as each user has one on many systems."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    own = (user.pw_gid, user.pw_name) == (group.gr_gid, group.gr_name)
    return own and set(group.gr_mem) <= {user.pw_name}


def _is_member(gid: int) -> bool:
    return gid == os.getegid() or gid in os.getgroups()
