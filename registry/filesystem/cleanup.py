"""Removes what dead workers left in a component's directory; every registered worker runs it there.

Records and locks whose owner is dead, temporary files, locks without a record. Blocking.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from discovery.filesystem.record import (
    LOCK_SUFFIX,
    RECORD_SUFFIX,
    TEMPORARY_SUFFIX,
    Record,
    is_held,
    is_record_name,
    open_lock,
    read_record,
)
from discovery.instance import check_instance_id
from registry.filesystem.files import component_lock, temporary_path

REAP_AFTER: Final = 60.0
"""Seconds without a new counter after which another host's record is removed; readers drop it long before."""
STALE_AFTER: Final = 60.0
"""Seconds after which a temporary file is abandoned: a writer renames it within milliseconds."""
_MAX_REMOVALS: Final = 1000
"""Records removed in one run: the run shares a thread with the heartbeat and must not delay it."""

_MIN_INTERVAL: Final = 10.0
_INTERVAL_PER_RECORD: Final = 0.5
"""Seconds between two runs, the larger of both. Every worker runs the cleanup, so with a fixed interval n workers
would read n records n times; an interval that grows with n keeps the directory's load constant."""

# bounded: at most 255 characters
_TEMPORARY = re.compile(rf"\..+\.[0-9a-f]{{32}}{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL)


class _Heartbeat(NamedTuple):
    """The part of its record that a living worker changes; unchanged means silent."""

    incarnation: str
    counter: int


class Cleanup:
    """The state between the runs in one `directory`. `host` is this machine; `is_cancelled` ends a run early."""

    def __init__(self, directory: Path, host: str, is_cancelled: Callable[[], bool]) -> None:
        self._directory = directory
        self._host = host
        self._is_cancelled = is_cancelled
        self._last_heartbeats: dict[str, tuple[_Heartbeat, float]] = {}

    def run(self, now: float) -> float:
        """Remove what is certainly dead. `now`: seconds of a monotonic clock. Returns the seconds until the next run.

        A held component lock or a failing disk skips files until then. Raises OSError if the directory is unreadable.
        """
        names = os.listdir(self._directory)
        ids = [name.removesuffix(RECORD_SUFFIX) for name in names if is_record_name(name)]
        self._last_heartbeats = {i: since for i, since in self._last_heartbeats.items() if i in ids}
        dead = islice(self._dead(ids, now), _MAX_REMOVALS)
        removed = sum(
            _remove_dead(self._directory, instance_id, heartbeat) for instance_id, heartbeat in dead
        )
        _remove_leftovers(self._directory, names)
        return (
            0.0
            if removed == _MAX_REMOVALS
            else max(_MIN_INTERVAL, (len(ids) - removed) * _INTERVAL_PER_RECORD)
        )

    def _dead(self, ids: Collection[str], now: float) -> Iterator[tuple[str, _Heartbeat]]:
        for instance_id in ids:
            if self._is_cancelled():
                return
            record = _read(self._directory, instance_id)
            if record is None:
                continue
            heartbeat = _Heartbeat(record.incarnation, record.counter)
            if record.host == self._host:
                if not _is_owned(self._directory, instance_id):
                    yield instance_id, heartbeat
                continue
            before, since = self._last_heartbeats.setdefault(instance_id, (heartbeat, now))
            if before != heartbeat:
                self._last_heartbeats[instance_id] = heartbeat, now
            elif now - since > REAP_AFTER:
                yield instance_id, heartbeat


def _remove_dead(directory: Path, instance_id: str, heartbeat: _Heartbeat) -> bool:
    """Remove a dead worker's files, unless its id was claimed again: the record is compared under the component lock."""
    try:
        with component_lock(directory, timeout=0):
            record = _read(directory, instance_id)
            if record is None or _Heartbeat(record.incarnation, record.counter) != heartbeat:
                return False
            if _is_owned(directory, instance_id):
                return False
            (directory / f"{instance_id}{RECORD_SUFFIX}").unlink(missing_ok=True)
            (directory / f"{instance_id}{LOCK_SUFFIX}").unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _read(directory: Path, instance_id: str) -> Record | None:
    """None for an unreadable record, which is never removed."""
    try:
        return read_record(directory / f"{instance_id}{RECORD_SUFFIX}")
    except (OSError, ValueError):
        return None


def _is_owned(directory: Path, instance_id: str) -> bool:
    """Whether its lock is held; True if that cannot be known."""
    try:
        descriptor = open_lock(directory / f"{instance_id}{LOCK_SUFFIX}")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return is_held(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path, names: Collection[str]) -> None:
    """Remove old temporary files and orphaned locks. `names`: the directory's listing."""
    seen = frozenset(names)
    temporaries = [directory / name for name in names if _TEMPORARY.fullmatch(name)]
    old = [path for path in temporaries if _is_older(path, time.time())]
    orphans = [directory / name for name in names if _is_orphaned_lock(name, seen)]
    if not old and not orphans:
        return
    with suppress(OSError), component_lock(directory, timeout=0):
        now = _file_system_now(directory) if old else 0.0
        for path in old:
            if _is_older(path, now):
                path.unlink(missing_ok=True)
        for lock in orphans:
            _remove_orphaned_lock(lock)


def _is_older(path: Path, now: float) -> bool:
    try:
        return now - path.lstat().st_mtime > STALE_AFTER
    except OSError:
        return False


def _is_orphaned_lock(name: str, names: Collection[str]) -> bool:
    owner = name.removesuffix(LOCK_SUFFIX)
    if owner == name or f"{owner}{RECORD_SUFFIX}" in names:
        return False
    try:
        check_instance_id(owner)
    except ValueError:
        return False  # not an instance's lock: the component lock, or a stranger's file
    return True


def _remove_orphaned_lock(lock: Path) -> None:
    if lock.with_suffix(RECORD_SUFFIX).exists():
        return
    with suppress(FileNotFoundError):
        descriptor = open_lock(lock)
        try:
            if not is_held(descriptor):
                lock.unlink()
        finally:
            os.close(descriptor)


def _file_system_now(directory: Path) -> float:
    """Now by the clock that sets mtimes there, in seconds since the epoch: on NFS that is the server's, not ours."""
    temporary = temporary_path(directory, "now")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # the disk is full or read-only: use this machine's clock
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with suppress(OSError):
            temporary.unlink()
