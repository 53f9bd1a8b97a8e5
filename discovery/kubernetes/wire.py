"""What the API server sends, decoded: EndpointSlices, their list, watch events, Status. Unknown keys are skipped.

Absent and null are alike (a slice without pods has `endpoints: null`). What does not fit raises msgspec's errors.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.kubernetes.selection import SERVICE_NAME_LABEL

_LABELS: Final = {"namespace": NAMESPACE_LABEL, "component": COMPONENT_LABEL, "service": SERVICE_NAME_LABEL}
_ANNOTATIONS: Final = {"last_change": "endpoints.kubernetes.io/last-change-trigger-time"}


class Labels(msgspec.Struct, frozen=True, gc=False, rename=_LABELS):
    """The labels of a slice that mean something to us."""

    namespace: str | None = None
    component: str | None = None
    service: str | None = None


class Annotations(msgspec.Struct, frozen=True, gc=False, rename=_ANNOTATIONS):
    last_change: str | None = None


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: Labels | None = None
    annotations: Annotations | None = None


class Conditions(msgspec.Struct, frozen=True, gc=False):
    """None means true, true and false (the API's own rule)."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Target(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    addresses: tuple[str, ...] | None = None
    conditions: Conditions | None = None
    target_ref: Target | None = None
    zone: str | None = None
    node_name: str | None = None


class Port(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    metadata: Metadata
    address_type: str
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


class RawSlice(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An EndpointSlice whose endpoints are cut apart and not decoded: most of them are what they were before."""

    metadata: Metadata
    address_type: str
    endpoints: tuple[msgspec.Raw, ...] | None = None
    ports: tuple[Port, ...] | None = None


class ListMetadata(msgspec.Struct, frozen=True, rename={"version": "resourceVersion", "rest": "continue"}):
    version: str = ""
    rest: str = ""


class EndpointSliceList(msgspec.Struct, frozen=True):
    """One page; `metadata.rest` asks for the next one. `kind` is required: what is no list must not read as an empty
    one."""

    kind: Literal["EndpointSliceList"]
    metadata: ListMetadata
    items: tuple[EndpointSlice, ...] | None = None


class RawSliceList(msgspec.Struct, frozen=True):
    kind: Literal["EndpointSliceList"]
    metadata: ListMetadata
    items: tuple[RawSlice, ...] | None = None


class Bookmark(msgspec.Struct, frozen=True):
    metadata: Metadata


class Cause(msgspec.Struct, frozen=True):
    reason: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int | None = None
    causes: tuple[Cause, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """How the API server says no, in a body or in an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


class Added(msgspec.Struct, frozen=True, tag_field="type", tag="ADDED"):
    object: RawSlice


class Modified(msgspec.Struct, frozen=True, tag_field="type", tag="MODIFIED"):
    object: RawSlice


class Removed(msgspec.Struct, frozen=True, tag_field="type", tag="DELETED"):
    """`object` is the slice as it was before, with the version of the event."""

    object: RawSlice


class WatchProgress(msgspec.Struct, frozen=True, tag_field="type", tag="BOOKMARK"):
    object: Bookmark


class Failure(msgspec.Struct, frozen=True, tag_field="type", tag="ERROR"):
    object: Status


decode_list = msgspec.json.Decoder(RawSliceList).decode
decode_event = msgspec.json.Decoder(Added | Modified | Removed | WatchProgress | Failure).decode
"""One line of a watch, in one pass."""
decode_endpoints = msgspec.json.Decoder(tuple[SliceEndpoint, ...]).decode
decode_slice = msgspec.json.Decoder(EndpointSlice).decode
_decode_status = msgspec.json.Decoder(Status).decode


def decode_status(body: bytes | bytearray) -> Status:
    """The Status, or an empty one when something else answers: a proxy's page of HTML."""
    try:
        return _decode_status(body)
    except msgspec.DecodeError:
        return Status()


Age: TypeAlias = tuple[int, str]


def age(version: str) -> Age:
    """Orders resource versions: integers of up to 128 bit as text, comparable since Kubernetes 1.35 (KEP-5504). A version that is no integer
    (an aggregated API's own) is older than all and equal to its like.
    """
    return (len(version), version) if version.isascii() and version.isdigit() else (0, "")


def is_older(version: str, than: str) -> bool:
    """Whether `version` is certainly from an earlier moment than `than`."""
    return (0, "") < age(version) < age(than)
