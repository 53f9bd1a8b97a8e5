"""Records and locks as workers of this machine make them, without the workers."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from discovery import InstanceStatus
from discovery.filesystem.record import Record, boot_id
from registry.filesystem.locks import HeldLock
from registry.filesystem.record_file import write_record


def write(component: Path, instance_id: str, **changes: object) -> Path:
    """A sound record; the path it is at."""
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
    """A living worker: its record, and its lock in our hand."""
    lock = HeldLock(component / f"{instance_id}.lock")
    write(component, instance_id)
    return lock


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
