"""Reads one component's directory and decides which records belong to living workers. Writes nothing.

Blocking: called from a worker thread, by one caller at a time. Times are seconds of a monotonic clock.
"""

import errno
import os
import resource
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adsum.quoting import printable
from discovery.filesystem.record import (
    LOCK_SUFFIX,
    RECORD_SUFFIX,
    Record,
    is_held,
    is_record_name,
    is_same_file,
    open_lock,
    read_record,
)
from discovery.filesystem.root import CheckedDirectory, user_name
from discovery.source import Candidate, Snapshot

SILENT_AFTER: Final = 6.0
"""Seconds without a new counter after which another host's worker counts as dead: three heartbeats."""

_MAX_NAME: Final = 255
"""Characters of a file name, as most file systems have it."""
_FILE_ERRORS: Final = frozenset(
    [
        errno.EACCES,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENODEV,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EOPNOTSUPP,
        errno.EPERM,
    ]
)
"""Errors that reject one file. Any other, such as EMFILE or EIO, says nothing about the file: the scan fails instead."""


@dataclass(slots=True, eq=False)
class DirectoryEntry:
    """One record file as last read. `descriptor` is its lock file, kept open for probing (-1: not open)."""

    id: str
    record: Record | None = None
    problem: str | None = None
    signature: tuple[int, int, int] | None = None
    descriptor: int = -1
    silent_at: float = 0.0
    is_dead: bool = False
    """Nobody held its lock. A new owner writes a new record, so that only full scans probe a dead one."""
    candidate: Candidate | None = None

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def live_candidate(self, record: Record) -> Candidate:
        instance = record.instance()
        if self.candidate is None or self.candidate.instance != instance:
            self.candidate = Candidate(self.id, instance)
        return self.candidate

    def rejected_candidate(self, reason: str) -> Candidate:
        if self.candidate is None or self.candidate.reason != reason:
            self.candidate = Candidate(printable(self.id, _MAX_NAME), reason=reason)
        return self.candidate


class ComponentDirectory:
    """Caches records between scans, and keeps the directory and its lock files open.

    Lock files take at most half of the descriptors that this process may have; beyond that each probe opens one.
    """

    def __init__(self, path: Path, host: str) -> None:
        self.path = path
        self._host = host
        self._descriptor = -1
        self._checked = CheckedDirectory(path, 0, 0, 0)
        self._entries: dict[str, DirectoryEntry] = {}

    def scan(self, now: float, changed: Collection[str] | None = None, *, probe: bool = True) -> Snapshot:
        """The candidates now. `changed`: the file names to read again; None: all of them. Without `probe`, only the locks
        of records that were read are probed.

        Raises FileNotFoundError if the directory was removed or replaced, and OSError if it cannot be read in full:
        the cache is kept, and the next scan must read everything.
        """
        self._check_same_directory()
        found = set(os.listdir(self.path)) if changed is None else set(changed)
        names = {name for name in found if is_record_name(name)}
        if changed is None:
            for gone in self._entries.keys() - {_instance_id(name) for name in names}:
                self._forget(gone)
        for name in names:
            self._read(name, now)
        to_probe = list(self._entries) if probe or changed is None else {_instance_id(name) for name in names}
        for entry in [self._entries[i] for i in to_probe if i in self._entries]:
            if changed is None or not entry.is_dead:
                entry.candidate = self._judge(entry, now)
        return Snapshot(e.candidate for e in self._entries.values() if e.candidate is not None)

    def close(self) -> None:
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_same_directory(self) -> None:
        """While the descriptor is open, the inode number cannot be reused, so that a replaced directory shows."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not is_same_file(self._descriptor, self.path):
            raise FileNotFoundError(f"{self.path} was removed, or replaced by another directory")
        found = os.fstat(self._descriptor)
        self._checked = CheckedDirectory(self.path, found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))

    def _forget(self, instance_id: str) -> None:
        self._entries.pop(instance_id).close()

    def _read(self, name: str, now: float) -> None:
        instance_id = _instance_id(name)
        entry = self._entries.setdefault(instance_id, DirectoryEntry(instance_id))
        path = self.path / name
        try:
            found = path.lstat()
            if (signature := _signature(found)) == entry.signature:
                return
            self._check_owner(found.st_uid)
            self._store_record(entry, read_record(path), found.st_mtime, now)
            entry.signature = signature  # only now: a record that failed to parse is read again
        except FileNotFoundError:
            self._forget(instance_id)
        except OSError as error:
            if error.errno not in _FILE_ERRORS:
                raise
            entry.record, entry.signature, entry.problem = None, None, error.strerror
        except ValueError as error:
            entry.record, entry.signature, entry.problem = None, None, str(error)

    def _check_owner(self, uid: int) -> None:
        """Raises ValueError for files from a time when others could write here."""
        if not self._checked.allows_owner(uid):
            raise ValueError(f"it belongs to {user_name(uid)}, who may not write to {self.path}")

    def _store_record(self, entry: DirectoryEntry, record: Record, written: float, now: float) -> None:
        before, entry.record, entry.problem, entry.is_dead = entry.record, record, None, False
        if before is None or before.incarnation != record.incarnation:  # a new owner has a new lock file
            entry.close()
        if before is None:
            entry.silent_at = now if self._is_stale(record, written) else now + SILENT_AFTER
        elif (before.incarnation, before.counter) != (record.incarnation, record.counter):
            entry.silent_at = now + SILENT_AFTER

    def _is_stale(self, record: Record, written: float) -> bool:
        """Whether another host's record, read for the first time, has missed its heartbeats already.

        Compares the file's time with our clock: reading the file server's clock would need a write. If ours is ahead,
        living workers count as dead until their next heartbeat.
        """
        return record.host != self._host and time.time() - written > SILENT_AFTER

    def _judge(self, entry: DirectoryEntry, now: float) -> Candidate:
        if entry.record is None:
            return entry.rejected_candidate(f"its record cannot be used: {entry.problem}")
        if entry.record.host == self._host:
            return self._judge_by_lock(entry, entry.record)
        if now < entry.silent_at:
            return entry.live_candidate(entry.record)
        return entry.rejected_candidate(f"another host's worker, silent for more than {SILENT_AFTER:g} s")

    def _judge_by_lock(self, entry: DirectoryEntry, record: Record) -> Candidate:
        try:
            held = self._is_owned(entry)
        except OSError as error:
            if error.errno not in _FILE_ERRORS:
                raise
            return entry.rejected_candidate(f"its lock cannot be probed: {error.strerror}")
        if held:
            return entry.live_candidate(record)
        entry.is_dead = True
        entry.close()
        return entry.rejected_candidate(
            "its process has ended; another worker that is registered here removes the record"
        )

    def _is_owned(self, entry: DirectoryEntry) -> bool:
        """Whether the lock is held. If a kept lock file is free, opens its path again: a new owner replaces the file."""
        if entry.descriptor >= 0:
            if is_held(entry.descriptor):
                return True
            entry.close()
        try:
            entry.descriptor = open_lock(self._lock_path(entry))
        except FileNotFoundError:
            return False
        try:
            return is_held(entry.descriptor)
        finally:
            if not _has_spare_descriptors(entry.descriptor):
                entry.close()

    def _lock_path(self, entry: DirectoryEntry) -> Path:
        return self.path / f"{entry.id}{LOCK_SUFFIX}"


def _has_spare_descriptors(descriptor: int) -> bool:
    """open(2) returns the lowest free number, so that a high one shows that this process has many files open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or descriptor < limit // 2


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    """Changes when the file is written or replaced."""
    return found.st_mtime_ns, found.st_ino, found.st_size


def _instance_id(name: str) -> str:
    return name.removesuffix(RECORD_SUFFIX)
