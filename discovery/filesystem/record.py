"""The record of one instance on disk: its fields, its validation, and the boot id of this machine.

`<root>/<namespace>/<component>/<instance_id>.json` is the record. Its owner holds `<instance_id>.lock` beside it with
flock for its life: not the record itself, since each update renames a new file into its place, and a lock belongs to the
old one. A worker that registers or cleans up holds `.lock`.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from discovery.instance import Instance, InstanceStatus, check_address, check_instance_id

RECORD_SUFFIX: Final = ".json"
LOCK_SUFFIX: Final = ".lock"
COMPONENT_LOCK: Final = ".lock"
TEMPORARY_SUFFIX: Final = ".tmp"
HEARTBEAT: Final = 2.0
"""Seconds between two rewrites of the record's counter, by which other hosts see that the owner is alive."""
RECORD_LIMIT: Final = 64 * 1024
"""Largest record in encoded bytes, on both ends."""


class Record(BaseModel):
    """One instance on disk. Unknown keys are ignored: a newer version may write more."""

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


def is_record_name(name: str) -> bool:
    """Whether a file of that name holds a record; a hidden file is one that is still being written."""
    return name.endswith(RECORD_SUFFIX) and not name.startswith(".")


def read_record(path: Path) -> Record:
    """The record at `path`. Raises ValueError if it is not valid or does not belong to its path; OSError."""
    raw = _read_regular(path, RECORD_LIMIT + 1)
    if len(raw) > RECORD_LIMIT:
        raise ValueError(f"the record is larger than {RECORD_LIMIT} bytes")
    try:
        record = Record.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"not a valid record: {where + ': ' if where else ''}{first['msg']}") from error
    expected = (path.parent.parent.name, path.parent.name, path.name.removesuffix(RECORD_SUFFIX))
    if (record.namespace, record.component, record.instance_id) != expected:
        raise ValueError("a foreign record: its namespace, component or id is not the one of its path")
    return record


def _read_regular(path: Path, limit: int) -> bytes:
    # without O_NONBLOCK a FIFO would block until a writer opens it (fifo(7))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """An id of this boot of this machine; on macOS `kern.bootsessionuuid`.

    Readers with the same boot id share a kernel with the owner, so that its lock proves that it lives. The id changes at
    a reboot: records from before are another host's, whose counter stands still.
    """
    if sys.platform == "darwin":
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
        )
        return found.stdout.strip().lower()
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
