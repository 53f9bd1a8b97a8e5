"""The filesystem truth as bytes on disk: where the root is, what a record holds, who is this machine.

`<root>/<namespace>/<component>/<instance_id>.json` is the record, `<instance_id>.lock` beside it is held with flock
for the owner's life, `.lock` is held by whoever registers or reaps.
"""

import os
import stat
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from discovery.errors import AdsumError
from discovery.instance import Instance, InstanceStatus
from discovery.source import ComponentKey

RECORD_SUFFIX: Final = ".json"
LOCK_SUFFIX: Final = ".lock"
COMPONENT_LOCK: Final = ".lock"
HEARTBEAT: Final = 2.0
"""Seconds between two rewrites of the record's counter, by which other hosts see that the owner lives."""
RECORD_LIMIT: Final = 64 * 1024


class RootError(AdsumError):
    """The root directory cannot be used. The text says why and what to do."""


class Record(BaseModel):
    """One instance on disk. Unknown keys are tolerated: a newer writer may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    instance_id: str
    namespace: str
    component: str
    incarnation: str = Field(min_length=1)
    host: str
    address: str = Field(min_length=1)
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
    with path.open("rb") as file:
        raw = file.read(RECORD_LIMIT + 1)
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


def write_record(directory: Path, record: Record) -> None:
    """Put the record in place whole: written aside, renamed."""
    target = directory / f"{record.instance_id}{RECORD_SUFFIX}"
    aside = directory / f".{record.instance_id}.{uuid.uuid4().hex}.tmp"
    try:
        aside.write_bytes(record.model_dump_json().encode())
        aside.rename(target)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


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
        _make(root)
    check_root(root)
    return root


def component_path(root: Path, key: ComponentKey) -> Path:
    """The directory of one component, made if it is missing. RootError when it cannot be."""
    path = root / key.namespace / key.component
    _make(path)
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


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
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
