"""The filesystem truth as bytes on disk: where the root is, what a record holds, who is this machine.

`<root>/<namespace>/<component>/<instance_id>.json` is the record, `<instance_id>.lock` beside it is held with flock
for the owner's life, `.lock` is held by whoever registers or reaps.
"""

import os
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from discovery.errors import AdsumError
from discovery.instance import Instance, InstanceStatus, check_address, check_instance_id
from discovery.source import ComponentKey

RECORD_SUFFIX: Final = ".json"
LOCK_SUFFIX: Final = ".lock"
COMPONENT_LOCK: Final = ".lock"
ASIDE_SUFFIX: Final = ".tmp"
HEARTBEAT: Final = 2.0
"""Seconds between two rewrites of the record's counter, by which other hosts see that the owner lives."""
RECORD_LIMIT: Final = 64 * 1024
"""Largest record in encoded bytes, on both ends."""


class RootError(AdsumError):
    """The root directory cannot be used. The text says why and what to do."""


class Record(BaseModel):
    """One instance on disk. Unknown keys are tolerated: a newer writer may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    instance_id: Annotated[str, AfterValidator(check_instance_id)]
    namespace: str
    component: str
    incarnation: str = Field(min_length=1)
    host: str
    address: Annotated[str, AfterValidator(check_address)]
    port: int = Field(ge=0, le=65535)
    status: InstanceStatus
    labels: dict[str, str] = {}
    counter: int = 0

    def instance(self) -> Instance:
        return Instance(
            id=self.instance_id,
            namespace=self.namespace,
            component=self.component,
            address=self.address,
            port=self.port,
            incarnation=self.incarnation,
            status=self.status,
            labels=self.labels,
            node=self.host,
        )


def read_record(path: Path) -> Record:
    """The record at `path`; ValueError says what is wrong with it, FileNotFoundError that it is gone."""
    raw = _read_regular(path, RECORD_LIMIT + 1)
    if len(raw) > RECORD_LIMIT:
        raise ValueError(f"the record is larger than {RECORD_LIMIT} bytes")
    try:
        record = Record.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"not a whole record: {where + ': ' if where else ''}{first['msg']}") from error
    expected = (path.parent.parent.name, path.parent.name, path.name.removesuffix(RECORD_SUFFIX))
    if (record.namespace, record.component, record.instance_id) != expected:
        raise ValueError("a foreign record: its namespace, component or id is not the one of its path")
    return record


def encode_record(record: Record) -> bytes:
    """What is written; ValueError when nobody would read it."""
    encoded = record.model_dump_json().encode()
    if len(encoded) > RECORD_LIMIT:
        raise ValueError(
            f"the record of {record.instance_id} takes {len(encoded)} bytes, at most {RECORD_LIMIT} are read: "
            "say less in its labels"
        )
    return encoded


def write_record(directory: Path, record: Record) -> None:
    """Put the record in place whole: written aside, renamed. ValueError as `encode_record`."""
    encoded = encode_record(record)
    target = directory / f"{record.instance_id}{RECORD_SUFFIX}"
    aside = aside_path(directory, record.instance_id)
    try:
        aside.write_bytes(encoded)
        aside.rename(target)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def aside_path(directory: Path, name: str) -> Path:
    """A new name for what is put in place, or removed, in a moment."""
    return directory / f".{name}.{uuid.uuid4().hex}{ASIDE_SUFFIX}"


def file_system_now(directory: Path) -> float:
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


def default_root() -> Path:
    """`$ADSUM_ROOT`, else `$XDG_RUNTIME_DIR/adsum`, else a directory of this user's own under the temporary one."""
    if root := os.environ.get("ADSUM_ROOT"):
        return Path(root)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "adsum"
    return Path(tempfile.gettempdir()) / f"adsum-{os.getuid()}"


def open_root(named: Path | None) -> Path:
    """The root, checked. A root that was named must exist; the default one is made, for this user alone (0700)."""
    root = named or default_root()
    if named is None:
        _make(root, parents=True)
    check_root(root)
    return root


def component_path(root: Path, key: ComponentKey) -> Path:
    """The directory of one component, made if it is missing, for this user alone (0700); never the root.

    RootError when it cannot be.
    """
    path = root / key.namespace / key.component
    for level in (path.parent, path):
        _make(level, parents=False)
    return path


def check_root(root: Path) -> None:
    """RootError if the root is no directory, or if others could announce workers in it."""
    try:
        found = root.stat()
    except FileNotFoundError as error:
        raise RootError(f"the root {root} does not exist: mkdir -m 700 {root}, or mount its disk") from error
    except OSError as error:
        raise RootError(f"the root {root} cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise RootError(f"the root {root} is not a directory")
    if found.st_mode & stat.S_IWOTH:
        raise RootError(
            f"the root {root} can be written by everyone on this machine, so anyone could announce a worker: "
            f"chmod o-w {root}, or name another root in $ADSUM_ROOT"
        )
    if found.st_uid not in (os.getuid(), 0):
        raise RootError(
            f"the root {root} belongs to user {found.st_uid}: name a root of your own in $ADSUM_ROOT"
        )


def _read_regular(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def _make(path: Path, *, parents: bool) -> None:
    try:
        path.mkdir(mode=0o700, parents=parents, exist_ok=True)
    except OSError as error:
        raise RootError(f"the directory {path} cannot be made: {error.strerror}") from error


def this_host() -> str:
    """This boot of this machine: `/proc/sys/kernel/random/boot_id`, on macOS `kern.bootsessionuuid`."""
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
        )
        return asked.stdout.strip().lower()
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
