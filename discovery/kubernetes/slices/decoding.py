"""Decodes EndpointSlices, in lists and in watch events; an endpoint whose bytes have not changed is not decoded again, and
stays the same object. Pure.

Structs have the names and fields of the API (discovery.k8s.io/v1), as far as we read them; unknown fields are skipped. An
absent field and null are alike: a slice without pods has `endpoints: null`. What does not fit raises
msgspec.ValidationError.
"""

from itertools import compress
from operator import ne
from typing import Final, Literal

import msgspec

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.kubernetes.reflector.decoding import (
    BookmarkEvent,
    ErrorEvent,
    ListMeta,
    ObjectEvent,
    Page,
    WatchEvent,
)

_LABELS: Final = {"namespace": NAMESPACE_LABEL, "component": COMPONENT_LABEL}
_ANNOTATIONS: Final = {"last_change": "endpoints.kubernetes.io/last-change-trigger-time"}

# gc=False: these hold no reference cycles, and 10,000 endpoints would be walked by each full garbage collection


class SliceLabels(msgspec.Struct, frozen=True, gc=False, rename=_LABELS):
    namespace: str | None = None
    component: str | None = None


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


class EndpointSliceList(msgspec.Struct, frozen=True):
    """One page. `kind` is required: another document must not count as an empty list."""

    kind: Literal["EndpointSliceList"]
    metadata: ListMeta
    items: tuple[EndpointSlice, ...] | None = None


class RawSliceList(msgspec.Struct, frozen=True):
    kind: Literal["EndpointSliceList"]
    metadata: ListMeta
    items: tuple[RawSlice, ...] | None = None


class AddedEvent(msgspec.Struct, frozen=True, tag_field="type", tag="ADDED"):
    object: RawSlice


class ModifiedEvent(msgspec.Struct, frozen=True, tag_field="type", tag="MODIFIED"):
    object: RawSlice


class DeletedEvent(msgspec.Struct, frozen=True, tag_field="type", tag="DELETED"):
    """`object`: the slice before its deletion, but with the resourceVersion of this event. Its endpoints are gone."""

    object: RawSlice


decode_list = msgspec.json.Decoder(RawSliceList).decode
decode_event = msgspec.json.Decoder(
    AddedEvent | ModifiedEvent | DeletedEvent | BookmarkEvent | ErrorEvent
).decode
decode_endpoints = msgspec.json.Decoder(tuple[SliceEndpoint, ...]).decode
decode_slice = msgspec.json.Decoder(EndpointSlice).decode


class SliceDecoder:
    """ResourceDecoder that remembers the last endpoints of each slice. Each event carries a whole slice, of which one
    endpoint changed.

    Equal bytes have equal content, so that what was decoded from them may be shared.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[msgspec.Raw, ...], tuple[SliceEndpoint, ...]]] = {}

    def page(self, body: bytes) -> Page[EndpointSlice]:
        found = decode_list(body)
        slices = self.decode_all(found.items or ())
        return Page(slices, found.metadata.resource_version, found.metadata.continue_token)

    def event(self, line: bytes) -> WatchEvent[EndpointSlice]:
        match decode_event(line):
            case BookmarkEvent() | ErrorEvent() as event:
                return event
            case DeletedEvent(deleted):
                self.forget(deleted.metadata.name)
                return ObjectEvent(deleted.metadata.name, deleted.metadata.resource_version, None)
            case event:
                metadata = event.object.metadata
                return ObjectEvent(metadata.name, metadata.resource_version, self.decode(event.object))

    def decode(self, raw: RawSlice) -> EndpointSlice:
        """Raises msgspec.DecodeError or UnicodeDecodeError for endpoints that do not fit the API."""
        endpoints: tuple[SliceEndpoint, ...] | None = None
        if raw.endpoints is not None:
            endpoints = self._decode_changed(raw.endpoints, *self._last.get(raw.metadata.name, ((), ())))
            self._last[raw.metadata.name] = raw.endpoints, endpoints
        return EndpointSlice(raw.metadata, raw.address_type, endpoints, raw.ports)

    def decode_all(self, page: tuple[RawSlice, ...]) -> tuple[EndpointSlice, ...]:
        return tuple([self.decode(raw) for raw in page])

    def forget(self, name: str) -> None:
        self._last.pop(name, None)

    def retain(self, slices: tuple[EndpointSlice, ...]) -> None:
        """Forgets all other slices."""
        names = {each.metadata.name for each in slices}
        self._last = {name: last for name, last in self._last.items() if name in names}

    def _decode_changed(
        self, raw: tuple[msgspec.Raw, ...], old_raw: tuple[msgspec.Raw, ...], old: tuple[SliceEndpoint, ...]
    ) -> tuple[SliceEndpoint, ...]:
        if len(raw) != len(old_raw):
            return _decode_moved(raw, dict(zip(map(bytes, old_raw), old, strict=True)))
        changed = list(compress(range(len(raw)), map(ne, raw, old_raw)))
        if not changed:
            return old
        endpoints = list(old)
        for index, endpoint in zip(changed, _decode([raw[index] for index in changed]), strict=True):
            endpoints[index] = endpoint
        return tuple(endpoints)


def _decode_moved(
    raw: tuple[msgspec.Raw, ...], known: dict[bytes, SliceEndpoint]
) -> tuple[SliceEndpoint, ...]:
    """An endpoint was added or removed, so that others have another index: look them up by their bytes."""
    if not known:
        return _decode(raw)
    return tuple([known.get(bytes(each)) or _decode([each])[0] for each in raw])


def _decode(raw: list[msgspec.Raw] | tuple[msgspec.Raw, ...]) -> tuple[SliceEndpoint, ...]:
    return decode_endpoints(b"[%b]" % b",".join(raw))
