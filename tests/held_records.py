"""Writes records and holds locks as a worker on this machine does, without a worker."""

import itertools
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from discovery import InstanceStatus
from discovery.filesystem.record import Record, boot_id
from registry.filesystem.files import HeldLock, write_record


def write(component: Path, instance_id: str, **changes: object) -> Path:
    """Writes a valid record and returns its path."""
    record = Record(
        instance_id=instance_id,
        namespace=component.parent.name,
        component=component.name,
        incarnation="one",
        host=boot_id(),
        address="127.0.0.1",
        port=80,
        status=InstanceStatus.READY,
    )
    write_record(component, record.model_copy(update=changes))
    return component / f"{instance_id}.json"


def hold(component: Path, instance_id: str) -> HeldLock:
    """Writes the record of a live worker: this process holds its lock."""
    lock = HeldLock(component / f"{instance_id}.lock")
    write(component, instance_id)
    return lock


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Limits this process to `count` more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    # the list itself had the lowest one; above it others may be open, which a test before left
    used = {int(name) for name in os.listdir("/proc/self/fd")} - {lowest}
    free = (number for number in itertools.count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
