"""Writing a record: whole or not at all."""

import os
import uuid
from contextlib import suppress
from pathlib import Path

from discovery.filesystem.record import RECORD_LIMIT, RECORD_SUFFIX, TEMPORARY_SUFFIX, Record


def encode_record(record: Record) -> bytes:
    """What is written; ValueError when nobody would read it."""
    encoded = record.model_dump_json().encode()
    if len(encoded) > RECORD_LIMIT:
        raise ValueError(
            f"the record of {record.instance_id} takes {len(encoded)} bytes, at most {RECORD_LIMIT} are read: "
            "say less in its labels"
        )
    return encoded


def write_record(directory: Path, record: Record, *, mode: int = 0o600) -> None:
    """Put the record in place whole: written aside, renamed. ValueError as `encode_record`."""
    encoded = encode_record(record)
    target = directory / f"{record.instance_id}{RECORD_SUFFIX}"
    aside = aside_path(directory, record.instance_id)
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), mode)  # not what this process's umask leaves of it
            file.write(encoded)
        aside.rename(target)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def aside_path(directory: Path, name: str) -> Path:
    """A new name for what is put in place, or removed, in a moment."""
    return directory / f".{name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
