"""What a death in the middle of something leaves beside the records: files written aside, locks without a record.

Blocking.
"""

import os
import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from discovery.flock import component_locked, is_held, open_lock
from discovery.instance import check_instance_id
from discovery.record import ASIDE_SUFFIX, LOCK_SUFFIX, RECORD_SUFFIX, file_system_now

STALE_AFTER: Final = 60.0
"""Seconds after which nobody puts a file in place any more that was written aside."""

_ASIDE = re.compile(rf"\..+\.[0-9a-f]{{32}}{re.escape(ASIDE_SUFFIX)}", re.DOTALL)


def sweep(directory: Path, names: Collection[str]) -> None:
    """Remove what is litter for certain; `names` is what was seen in the directory just now.

    Somebody who registers now, or a disk that refuses, is no reason to wait: the next sweep comes soon.
    """
    asides = [directory / name for name in names if _ASIDE.fullmatch(name)]
    old = [path for path in asides if _is_older(path, time.time())]
    orphans = [directory / name for name in names if _lacks_record(name, names)]
    if not old and not orphans:
        return
    with suppress(OSError), component_locked(directory, patience=0):
        now = file_system_now(directory) if old else 0.0
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
