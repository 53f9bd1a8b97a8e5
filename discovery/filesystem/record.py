"""The record of one instance on disk, the lock beside it that says whether its owner lives, and this machine's boot id.

`<root>/<namespace>/<component>/<instance_id>.json` is the record. Its owner holds `<instance_id>.lock` beside it with
flock for its life: not the record itself, since each update renames a new file into its place, and a lock belongs to the
old one. A worker that registers or cleans up holds `.lock`.

The kernel releases a lock when all descriptors of its open file description are closed, however the owner ends. So a held
lock proves that the owner lives, without heartbeats or leases. Descriptors that a fork inherits share the lock:
`registry.filesystem.files` closes them in the child.
"""

import fcntl
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from discovery.instance import Instance
from discovery.record import RECORD_LIMIT, InstanceRecord, decode_record
from discovery.source import ComponentKey

RECORD_SUFFIX: Final = ".json"
LOCK_SUFFIX: Final = ".lock"
COMPONENT_LOCK: Final = ".lock"
TEMPORARY_SUFFIX: Final = ".tmp"
HEARTBEAT: Final = 2.0
"""Seconds between two rewrites of the record's counter, by which other hosts see that the owner is alive."""


class Record(InstanceRecord):
    """One instance on disk. `host`: the boot id of its owner's machine, whose locks prove that the owner lives. `counter`:
    what other machines watch instead."""

    host: str
    counter: int = 0

    def instance(self) -> Instance:
        return replace(super().instance(), node=self.host)


def is_record_name(name: str) -> bool:
    """Whether a file of that name holds a record; a hidden file is one that is still being written."""
    return name.endswith(RECORD_SUFFIX) and not name.startswith(".")


def read_record(path: Path) -> Record:
    """The record at `path`. Raises ValueError if it is not valid or does not belong to its path; OSError."""
    raw = _read_regular(path, RECORD_LIMIT + 1)
    key = ComponentKey(path.parent.parent.name, path.parent.name)
    return decode_record(Record, raw, key, path.name.removesuffix(RECORD_SUFFIX))


def _read_regular(path: Path, limit: int) -> bytes:
    # without O_NONBLOCK a FIFO would block until a writer opens it (fifo(7))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """An id of this boot of this machine; on macOS `kern.bootsessionuuid`.

    Readers with the same boot id share a kernel with the owner, so that its lock proves that it lives. The id changes at
    a reboot: records from before are another host's, whose counter stands still.
    """
    if sys.platform == "darwin":
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
        )
        return found.stdout.strip().lower()
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


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
