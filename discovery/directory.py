"""One component's directory as a set of candidates: who lives, who is dead and must be reaped, what is foreign.

Blocking: called from a worker thread, by one caller at a time. Times are seconds of a monotonic clock.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from discovery.flock import component_locked, is_held, is_same_file
from discovery.record import LOCK_SUFFIX, RECORD_SUFFIX, Record, read_record
from discovery.source import Candidate, Snapshot

SILENT_AFTER: Final = 6.0
"""Seconds without a new counter after which another host's instance is none (three heartbeats)."""
REAP_AFTER: Final = 60.0
"""Seconds without a new counter after which another host's record is removed."""


@dataclass(slots=True, eq=False)
class Entry:
    """One record file as last read. `descriptor` is its lock file, kept open for probing (-1: not open)."""

    id: str
    record: Record | None = None
    problem: str | None = None
    signature: tuple[int, int, int] | None = None
    descriptor: int = -1
    counted_at: float = 0.0
    candidate: Candidate | None = None

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def alive(self, record: Record) -> Candidate:
        instance = record.instance()
        if self.candidate is None or self.candidate.instance != instance:
            self.candidate = Candidate(self.id, instance)
        return self.candidate

    def rejected(self, reason: str) -> Candidate:
        if self.candidate is None or self.candidate.reason != reason:
            self.candidate = Candidate(self.id, reason=reason)
        return self.candidate


class ComponentDirectory:
    """Remembers between two scans what was read, and keeps the lock files open."""

    def __init__(self, path: Path, host: str) -> None:
        self.path = path
        self._host = host
        self._inode = path.stat().st_ino
        self._entries: dict[str, Entry] = {}

    def scan(self, now: float, changed: Collection[str] | None = None, *, probe: bool = True) -> Snapshot:
        """The set now. `changed`: only these file names are read anew, None: all are looked at. Without `probe` only
        the owners of what was read are probed, the others are as they were.

        FileNotFoundError when the directory was removed, even if another took its place; OSError when it cannot be
        read.
        """
        if self.path.stat().st_ino != self._inode:
            raise FileNotFoundError(f"{self.path} was replaced by another directory")
        names = _record_names(self.path) if changed is None else {n for n in changed if _is_record(n)}
        if changed is None:
            for gone in self._entries.keys() - {_id_of(name) for name in names}:
                self._forget(gone)
        for name in names:
            self._read(name, now)
        doubtful = list(self._entries) if probe or changed is None else {_id_of(name) for name in names}
        for entry in [self._entries[i] for i in doubtful if i in self._entries]:
            entry.candidate = self._judge(entry, now)
        return Snapshot(tuple(e.candidate for e in self._entries.values() if e.candidate is not None))

    def close(self) -> None:
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()

    def _forget(self, instance_id: str) -> None:
        self._entries.pop(instance_id).close()

    def _read(self, name: str, now: float) -> None:
        instance_id = _id_of(name)
        entry = self._entries.setdefault(instance_id, Entry(instance_id))
        path = self.path / name
        try:
            found = path.stat()
            signature = (found.st_mtime_ns, found.st_ino, found.st_size)
            if signature == entry.signature:
                return
            self._accept(entry, read_record(path), now)
            entry.signature = signature
        except FileNotFoundError:
            self._forget(instance_id)
        except (OSError, ValueError) as error:
            entry.record, entry.signature = None, None
            entry.problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)

    def _accept(self, entry: Entry, record: Record, now: float) -> None:
        before, entry.record, entry.problem = entry.record, record, None
        if before is None or before.incarnation != record.incarnation:
            entry.close()
        if before is None or (before.incarnation, before.counter) != (record.incarnation, record.counter):
            entry.counted_at = now

    def _judge(self, entry: Entry, now: float) -> Candidate | None:
        """The candidate, or None when the entry turned out dead and was reaped."""
        if entry.record is None:
            return entry.rejected(f"its record cannot be used: {entry.problem}")
        if entry.record.host == self._host:
            return self._judge_by_lock(entry, entry.record)
        silent = now - entry.counted_at
        if silent < SILENT_AFTER:
            return entry.alive(entry.record)
        if silent >= REAP_AFTER and self._reap(entry):
            return None
        return entry.rejected(f"another host's worker, silent for more than {SILENT_AFTER:g} s")

    def _judge_by_lock(self, entry: Entry, record: Record) -> Candidate | None:
        try:
            if entry.descriptor < 0:
                lock = self.path / f"{entry.id}{LOCK_SUFFIX}"
                entry.descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
            held = is_held(entry.descriptor)
        except FileNotFoundError:
            held = False
        except OSError as error:
            return entry.rejected(f"its lock cannot be probed: {error.strerror}")
        if held:
            return entry.alive(record)
        return (
            None if self._reap(entry) else entry.rejected("its owner is dead; the record is not removed yet")
        )

    def _reap(self, entry: Entry) -> bool:
        """Remove a dead worker's files, unless somebody registers right now: then the next scan sees who it is."""
        lock = self.path / f"{entry.id}{LOCK_SUFFIX}"
        try:
            with component_locked(self.path, patience=0):
                if not self._still_dead(entry, lock):
                    entry.close()
                    entry.signature = None
                    return False
                (self.path / f"{entry.id}{RECORD_SUFFIX}").unlink(missing_ok=True)
                lock.unlink(missing_ok=True)
        except (OSError, TimeoutError):
            return False
        self._forget(entry.id)
        return True

    def _still_dead(self, entry: Entry, lock: Path) -> bool:
        if entry.descriptor < 0:
            with suppress(FileNotFoundError):
                entry.descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
            if entry.descriptor < 0:
                return True
        return is_same_file(entry.descriptor, lock) and not is_held(entry.descriptor)


def _record_names(path: Path) -> set[str]:
    with os.scandir(path) as found:
        return {item.name for item in found if _is_record(item.name)}


def _is_record(name: str) -> bool:
    return name.endswith(RECORD_SUFFIX) and not name.startswith(".")


def _id_of(name: str) -> str:
    return name.removesuffix(RECORD_SUFFIX)
