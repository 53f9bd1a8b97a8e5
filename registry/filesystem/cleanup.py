"""What the dead leave in a component's directory, removed by those who register there.

Records and locks whose owner is dead, files written aside, locks without a record. Blocking.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from discovery.filesystem.flock import is_held, open_lock
from discovery.filesystem.record import (
    LOCK_SUFFIX,
    RECORD_SUFFIX,
    TEMPORARY_SUFFIX,
    Record,
    is_record_name,
    read_record,
)
from discovery.instance import check_instance_id
from registry.filesystem.locks import component_locked
from registry.filesystem.record_file import aside_path

REAP_AFTER: Final = 60.0
"""Seconds without a new counter after which another host's record is removed."""
STALE_AFTER: Final = 60.0
"""Seconds after which nobody puts a file in place any more that was written aside."""
_MOST: Final = 1000
"""Records that are removed in one look, so that heartbeats are not late."""

_PERIOD: Final = 10.0
_PERIOD_OF_ONE: Final = 0.5
"""Seconds between two looks: at least, and for each record."""

_ASIDE = re.compile(rf"\..+\.[0-9a-f]{{32}}{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL)


class _Life(NamedTuple):
    """One moment of a worker's life: a record that says the same later is silent."""

    incarnation: str
    counter: int


class Cleanup:
    """Looks at `directory` again and again. `host` is this machine; `given_up` ends a look early."""

    def __init__(self, directory: Path, host: str, given_up: Callable[[], bool]) -> None:
        self._directory = directory
        self._host = host
        self._given_up = given_up
        self._silent: dict[str, tuple[_Life, float]] = {}

    def look(self, now: float) -> float:
        """Remove what is dead for certain. `now`: seconds of a monotonic clock. Returns after how many seconds the
        next look is due: the more records there are, the more workers look at them.

        Somebody who registers now, or a disk that refuses, is no reason to wait: the next look comes soon.
        """
        names = os.listdir(self._directory)
        ids = [name.removesuffix(RECORD_SUFFIX) for name in names if is_record_name(name)]
        self._silent = {i: since for i, since in self._silent.items() if i in ids}
        dead = islice(self._dead(ids, now), _MOST)
        removed = sum(_reap(self._directory, instance_id, life) for instance_id, life in dead)
        _sweep(self._directory, names)
        return 0.0 if removed == _MOST else max(_PERIOD, (len(ids) - removed) * _PERIOD_OF_ONE)

    def _dead(self, ids: Collection[str], now: float) -> Iterator[tuple[str, _Life]]:
        for instance_id in ids:
            if self._given_up():
                return
            record = _read(self._directory, instance_id)
            if record is None:
                continue
            life = _Life(record.incarnation, record.counter)
            if record.host == self._host:
                if not _is_owned(self._directory, instance_id):
                    yield instance_id, life
                continue
            before, since = self._silent.setdefault(instance_id, (life, now))
            if before != life:
                self._silent[instance_id] = life, now
            elif now - since > REAP_AFTER:
                yield instance_id, life


def _reap(directory: Path, instance_id: str, life: _Life) -> bool:
    """Remove a dead worker's files, unless somebody took the id since: its record says something else."""
    try:
        with component_locked(directory, patience=0):
            record = _read(directory, instance_id)
            if record is None or _Life(record.incarnation, record.counter) != life:
                return False
            if _is_owned(directory, instance_id):
                return False
            (directory / f"{instance_id}{RECORD_SUFFIX}").unlink(missing_ok=True)
            (directory / f"{instance_id}{LOCK_SUFFIX}").unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _read(directory: Path, instance_id: str) -> Record | None:
    """None where it cannot be read: then it is not ours to remove."""
    try:
        return read_record(directory / f"{instance_id}{RECORD_SUFFIX}")
    except (OSError, ValueError):
        return None


def _is_owned(directory: Path, instance_id: str) -> bool:
    """Whether somebody holds its lock, or that cannot be known."""
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


def _sweep(directory: Path, names: Collection[str]) -> None:
    """Remove what is litter for certain; `names` is what was seen in the directory just now."""
    seen = frozenset(names)
    asides = [directory / name for name in names if _ASIDE.fullmatch(name)]
    old = [path for path in asides if _is_older(path, time.time())]
    orphans = [directory / name for name in names if _lacks_record(name, seen)]
    if not old and not orphans:
        return
    with suppress(OSError), component_locked(directory, patience=0):
        now = _file_system_now(directory) if old else 0.0
        for path in old:
            if _is_older(path, now):
                path.unlink(missing_ok=True)
        for lock in orphans:
            _remove_unless_held(lock)


def _is_older(path: Path, now: float) -> bool:
    try:
        return now - path.lstat().st_mtime > STALE_AFTER
    except OSError:
        return False


def _lacks_record(name: str, names: Collection[str]) -> bool:
    owner = name.removesuffix(LOCK_SUFFIX)
    if owner == name or f"{owner}{RECORD_SUFFIX}" in names:
        return False
    try:
        check_instance_id(owner)
    except ValueError:
        return False  # not a lock of ours
    return True


def _remove_unless_held(lock: Path) -> None:
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
    """The clock that dates the files there, in seconds since the epoch: on a shared disk it is not ours."""
    aside = aside_path(directory, "now")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # a disk that is full or read-only: ours will do
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with suppress(OSError):
            aside.unlink()
