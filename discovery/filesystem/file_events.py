"""Which records changed, by the kernel's word; and where its word does not reach."""

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

from discovery.filesystem.record import RECORD_SUFFIX
from runtime.threads import Started, outlast, start_thread

_log = logging.getLogger(__name__)

_RESCAN: Final = 5.0
"""Seconds between two readings of the whole directory, for events that the kernel dropped."""
_DEBOUNCE_MS: Final = 50
_STEP_MS: Final = 5
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
    """The names of the records that changed in `path`; `look` is set when there are any.

    A thread of its own listens: each directory needs one for as long as it is watched, so no limit may be shared.
    """

    def __init__(self, path: Path, look: asyncio.Event) -> None:
        self._path = path
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._changed: set[str] = set()
        self._whole_at = 0.0
        self._reliable = False
        self._stop = threading.Event()
        self._listening: Started | None = None

    def take(self) -> frozenset[str] | None:
        """What to read anew: the files that changed; None, everything, at first, every few seconds, and always when
        there are no events to rely on.
        """
        changed = frozenset(self._changed)
        self._changed.clear()
        if self._reliable and time.monotonic() < self._whole_at:
            return changed
        self._whole_at = time.monotonic() + _RESCAN
        return None

    async def __aenter__(self) -> Self:
        """Entered, the kernel listens: what is read from now on misses nothing."""
        try:
            notify = RustNotify([str(self._path)], False, False, 0, False, False)
            self._listening = start_thread(self._listen, notify)
        except Exception as error:  # noqa: BLE001 -- no watch left in the kernel, or whatever: reading everything works
            self._lose(error)
        else:
            self._reliable = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._listening is not None:
            await outlast(self._listening)

    def _listen(self, notify: RustNotify) -> None:
        try:
            while not self._stop.is_set():
                found = notify.watch(_DEBOUNCE_MS, _STEP_MS, _TIMEOUT_MS, self._stop)
                if isinstance(found, set):
                    self._loop.call_soon_threadsafe(self._hear, {Path(path).name for _, path in found})
        except Exception as error:  # noqa: BLE001 -- as above
            self._loop.call_soon_threadsafe(self._lose, error)
        finally:
            notify.close()

    def _hear(self, names: Collection[str]) -> None:
        records = {name for name in names if name.endswith(RECORD_SUFFIX)}
        if records:
            self._changed |= records
            self._look.set()

    def _lose(self, error: Exception) -> None:
        self._reliable = False
        if self._path.exists():
            _log.warning("no file events for %s (%s): all of it is read each time", self._path, error)


def is_network_filesystem(path: Path) -> bool:
    """Whether file events of other hosts cannot reach us: judged by the mount's type (Linux), False where unknown."""
    try:
        mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n")
    except OSError:
        return False
    resolved = path.resolve()
    best, kind = "", ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        if len(point) >= len(best) and resolved.is_relative_to(point):
            best, kind = point, after.split()[0]
    return kind in _NETWORK_FILESYSTEMS or kind.startswith("fuse.")
