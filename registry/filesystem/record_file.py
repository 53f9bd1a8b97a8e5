"""Writes a record atomically: to a temporary file, then by a rename."""

import os
import uuid
from contextlib import suppress
from pathlib import Path

from discovery.filesystem.record import RECORD_SUFFIX, TEMPORARY_SUFFIX, Record
from discovery.record import encode_record


def write_record(directory: Path, record: Record, *, mode: int = 0o600) -> None:
    """Write or replace the record, so that readers see the old or the new one, never a part. OSError or ValueError.

    rename(2) is atomic. Without fsync a power cut may lose the record, but then its owner and its lock are gone too.
    """
    encoded = encode_record(record)
    target = directory / f"{record.instance_id}{RECORD_SUFFIX}"
    temporary = temporary_path(directory, record.instance_id)
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            os.fchmod(file.fileno(), mode)  # open applies the umask, fchmod does not
            file.write(encoded)
        temporary.rename(target)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_path(directory: Path, name: str) -> Path:
    """An unused hidden name, which readers skip and the cleanup removes if its writer dies."""
    return directory / f".{name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
