"""Decodes what the API server sends: EndpointSlices, lists, watch events, Status. Unknown fields are skipped.

Structs have the names and fields of the API (discovery.k8s.io/v1, meta/v1), as far as we read them. An absent field and
null are alike: a slice without pods has `endpoints: null`. What does not fit raises msgspec.ValidationError.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.kubernetes.selection import SERVICE_NAME_LABEL

_LABELS: Final = {"namespace": NAMESPACE_LABEL, "component": COMPONENT_LABEL, "service": SERVICE_NAME_LABEL}
_ANNOTATIONS: Final = {"last_change": "endpoints.kubernetes.io/last-change-trigger-time"}

# gc=False: these hold no reference cycles, and 10,000 endpoints would be walked by each full garbage collection


class SliceLabels(msgspec.Struct, frozen=True, gc=False, rename=_LABELS):
    namespace: str | None = None
    component: str | None = None
    service: str | None = None


class SliceAnnotations(msgspec.Struct, frozen=True, gc=False, rename=_ANNOTATIONS):
    last_change: str | None = None


class SliceMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: SliceLabels | None = None
    annotations: SliceAnnotations | None = None


class EndpointConditions(msgspec.Struct, frozen=True, gc=False):
    """None counts as true, true and false, in this order: the API says so."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    addresses: tuple[str, ...] | None = None
    conditions: EndpointConditions | None = None
    target_ref: ObjectReference | None = None
    zone: str | None = None
    node_name: str | None = None


class EndpointPort(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    metadata: SliceMetadata
    address_type: str
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class RawSlice(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An EndpointSlice whose endpoints are not decoded yet: `SliceDecoder` decodes those that have changed."""

    metadata: SliceMetadata
    address_type: str
    endpoints: tuple[msgspec.Raw, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`continue_token` asks for the next page; empty on the last one."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class EndpointSliceList(msgspec.Struct, frozen=True):
    """One page. `kind` is required: another document must not count as an empty list."""

    kind: Literal["EndpointSliceList"]
    metadata: ListMeta
    items: tuple[EndpointSlice, ...] | None = None


class RawSliceList(msgspec.Struct, frozen=True):
    kind: Literal["EndpointSliceList"]
    metadata: ListMeta
    items: tuple[RawSlice, ...] | None = None


class RawList(msgspec.Struct, frozen=True):
    """One page of a list of any kind."""

    kind: str
    metadata: ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class BookmarkObject(msgspec.Struct, frozen=True):
    metadata: SliceMetadata


class StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int | None = None
    causes: tuple[StatusCause, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """How the API server reports an error, in a body or in an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class AddedEvent(msgspec.Struct, frozen=True, tag_field="type", tag="ADDED"):
    object: RawSlice


class ModifiedEvent(msgspec.Struct, frozen=True, tag_field="type", tag="MODIFIED"):
    object: RawSlice


class DeletedEvent(msgspec.Struct, frozen=True, tag_field="type", tag="DELETED"):
    """`object`: the slice before its deletion, but with the resourceVersion of this event. Its endpoints are gone."""

    object: RawSlice


class BookmarkEvent(msgspec.Struct, frozen=True, tag_field="type", tag="BOOKMARK"):
    """All changes up to this resourceVersion have been sent."""

    object: BookmarkObject


class ErrorEvent(msgspec.Struct, frozen=True, tag_field="type", tag="ERROR"):
    """An error after the headers were sent, such as 410 Gone. The server ends the stream."""

    object: Status


class RawEvent(msgspec.Struct, frozen=True):
    """An event of a watch of any kind."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


decode_list = msgspec.json.Decoder(RawSliceList).decode
decode_raw_list = msgspec.json.Decoder(RawList).decode
decode_raw_event = msgspec.json.Decoder(RawEvent).decode
decode_bookmark = msgspec.json.Decoder(BookmarkObject).decode
decode_error = msgspec.json.Decoder(Status).decode
decode_event = msgspec.json.Decoder(
    AddedEvent | ModifiedEvent | DeletedEvent | BookmarkEvent | ErrorEvent
).decode
decode_endpoints = msgspec.json.Decoder(tuple[SliceEndpoint, ...]).decode
decode_slice = msgspec.json.Decoder(EndpointSlice).decode


def decode_status(body: bytes | bytearray) -> Status:
    """An empty Status for a body that is none, such as a proxy's HTML page."""
    try:
        return decode_error(body)
    except msgspec.DecodeError:
        return Status()


VersionKey: TypeAlias = tuple[int, str]


def version_key(version: str) -> VersionKey:
    """The sort key of a resourceVersion.

    Versions are integers of up to 128 bits as text, to be compared by length, then by text (KEP-5504). An aggregated
    API server may have others: those are equal to each other and older than all integers.
    """
    return (len(version), version) if version.isascii() and version.isdigit() else (0, "")


def is_older(version: str, than: str) -> bool:
    """False as well if the two cannot be compared."""
    return (0, "") < version_key(version) < version_key(than)
