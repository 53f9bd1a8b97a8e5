"""Reports which record files changed, by file events of the kernel; recognizes network file systems, which have none.

Events only save reads. The queue of inotify drops events when it overflows (inotify(7)), and Linux limits instances and
watches for each user, so that opening a watch may fail. So the directory is read in full every few seconds, and at every
probe where events do not work.
"""

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, Self

from watchfiles._rust_notify import RustNotify

from adsum.threads import StartedThread, start_thread, wait_for_exit
from discovery.filesystem.record import RECORD_SUFFIX

_log = logging.getLogger(__name__)

_RESCAN: Final = 5.0
"""Seconds between two reads of the whole directory, which find the changes of dropped events."""
_DEBOUNCE_MS: Final = 50
_POLL_MS: Final = 5
_TIMEOUT_MS: Final = 5000
_NETWORK_FILESYSTEMS: Final = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "gpfs",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
        "virtiofs",
    ]
)


class FileEvents:
    """Collects the names of the records that changed in `path`, and sets `wake`.

    It has a thread of its own, which waits for as long as the directory is watched: in a shared pool, enough watched
    directories would occupy every thread.
    """

    def __init__(self, path: Path, wake: asyncio.Event) -> None:
        self._path = path
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._changed: set[str] = set()
        self._rescan_at = 0.0
        self._reliable = False
        self._stop = threading.Event()
        self._thread: StartedThread | None = None

    def take_changes(self) -> frozenset[str] | None:
        """The files to read again; None for all: at first, every few seconds, and always without working events."""
        changed = frozenset(self._changed)
        self._changed.clear()
        if self._reliable and time.monotonic() < self._rescan_at:
            return changed
        self._rescan_at = time.monotonic() + _RESCAN
        return None

    async def __aenter__(self) -> Self:
        """The kernel queues events before this returns, so that no change after the first read is missed."""
        try:
            # not `watchfiles.awatch`: it does not tell when the kernel begins to queue events, and shares a thread pool
            notify = RustNotify([str(self._path)], False, False, 0, False, False)
            self._thread = start_thread(self._listen, notify)
        except Exception as error:  # noqa: BLE001 -- such as no inotify watch left: reading everything still works
            self._give_up(error)
        else:
            self._reliable = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            await wait_for_exit(self._thread)

    def _listen(self, notify: RustNotify) -> None:
        try:
            while not self._stop.is_set():
                found = notify.watch(_DEBOUNCE_MS, _POLL_MS, _TIMEOUT_MS, self._stop)
                if isinstance(found, set):
                    self._loop.call_soon_threadsafe(
                        self._record_changes, {Path(path).name for _, path in found}
                    )
        except Exception as error:  # noqa: BLE001 -- as above
            self._loop.call_soon_threadsafe(self._give_up, error)
        finally:
            notify.close()

    def _record_changes(self, names: Collection[str]) -> None:
        records = {name for name in names if name.endswith(RECORD_SUFFIX)}
        if records:
            self._changed |= records
            self._wake.set()

    def _give_up(self, error: Exception) -> None:
        self._reliable = False
        if self._path.exists():
            _log.warning(
                "no file events for %s (%s): the whole directory is read at each probe", self._path, error
            )


def is_network_filesystem(path: Path) -> bool:
    """Whether file events miss what other hosts write (inotify(7), "Limitations"): by the mount's type on Linux.

    False where the type is unknown.
    """
    try:
        # bounded: the kernel's
        mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n")
    except OSError:
        return False
    resolved = path.resolve()
    best, kind = "", ""
    for line in mounts:  # proc(5): " - " ends the optional fields; spaces in paths are octal escapes
        before, _, after = line.partition(" - ")
        # bounded: the kernel's
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        if len(point) >= len(best) and resolved.is_relative_to(point):
            # bounded: the kernel's
            best, kind = point, after.split()[0]
    return kind in _NETWORK_FILESYSTEMS or kind.startswith("fuse.")
