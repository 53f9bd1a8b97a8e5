"""The JSON record of one instance, as a registry writes it where a source reads it: in a file, or under a key (pure)."""

from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from adsum.quoting import printable
from discovery.instance import Instance, InstanceStatus, check_address, check_instance_id
from discovery.source import ComponentKey

RECORD_LIMIT: Final = 64 * 1024
"""Largest record in encoded bytes, on both ends."""
_MAX_PROBLEM: Final = 400
"""Characters of an error that may quote the record."""


class InstanceRecord(BaseModel):
    """Unknown keys are ignored: a newer version may write more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    instance_id: Annotated[str, AfterValidator(check_instance_id)]
    namespace: str
    component: str
    incarnation: str = Field(min_length=1)
    address: Annotated[str, AfterValidator(check_address)]
    port: int = Field(ge=0, le=65535)
    status: InstanceStatus
    labels: dict[str, str] = {}

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
        )


AnyRecord = TypeVar("AnyRecord", bound=InstanceRecord)


def record_of(instance: Instance) -> InstanceRecord:
    return InstanceRecord(
        instance_id=instance.id,
        namespace=instance.namespace,
        component=instance.component,
        incarnation=instance.incarnation,
        address=instance.address,
        port=instance.port,
        status=instance.status,
        labels=dict(instance.labels),
    )


def encode_record(record: InstanceRecord) -> bytes:
    """The record as JSON; ValueError if it is larger than readers accept."""
    encoded = record.model_dump_json().encode()
    if len(encoded) > RECORD_LIMIT:
        raise ValueError(
            f"the record of {record.instance_id} has {len(encoded)} bytes, readers accept {RECORD_LIMIT}: "
            "shorten its labels"
        )
    return encoded


def decode_record(kind: type[AnyRecord], raw: bytes, key: ComponentKey, instance_id: str) -> AnyRecord:
    """The record of the instance whose place this is. ValueError if it is too large, not valid or another's."""
    if len(raw) > RECORD_LIMIT:
        raise ValueError(f"the record is larger than {RECORD_LIMIT} bytes")
    try:
        record = kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = printable(f"{where + ': ' if where else ''}{first['msg']}", _MAX_PROBLEM)
        raise ValueError(f"not a valid record: {problem}") from error
    if (record.namespace, record.component, record.instance_id) != (*key, instance_id):
        raise ValueError("a foreign record: its namespace, component or id is not the one of its path")
    return record
