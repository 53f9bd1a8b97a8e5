"""Decodes EndpointSlices, in lists and in watch events; an endpoint whose bytes have not changed is not decoded again, and
stays the same object. Pure.

Structs have the names and fields of the API (discovery.k8s.io/v1), as far as we read them; unknown fields are skipped. An
absent field and null are alike: a slice without pods has `endpoints: null`. What does not fit raises
msgspec.ValidationError.
"""

from itertools import compress
from operator import ne
from typing import Final

import msgspec

from discovery.instance import COMPONENT_LABEL, NAMESPACE_LABEL
from discovery.kubernetes.reflector.decoding import ResourceDecoder

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


_decode_endpoints = msgspec.json.Decoder(tuple[SliceEndpoint, ...]).decode


class SliceDecoder(ResourceDecoder[EndpointSlice]):
    """Remembers the last endpoints of each slice. Each event carries a whole slice, of which one endpoint changed.

    Equal bytes have equal content, so that what was decoded from them may be shared.
    """

    def __init__(self) -> None:
        super().__init__(RawSlice, "EndpointSliceList")
        self._last: dict[str, tuple[tuple[msgspec.Raw, ...], tuple[SliceEndpoint, ...]]] = {}

    def finish(self, found: RawSlice) -> EndpointSlice:
        """Raises msgspec.DecodeError or UnicodeDecodeError for endpoints that do not fit the API."""
        endpoints: tuple[SliceEndpoint, ...] | None = None
        if found.endpoints is not None:
            endpoints = self._decode_changed(found.endpoints, *self._last.get(found.metadata.name, ((), ())))
            self._last[found.metadata.name] = found.endpoints, endpoints
        return EndpointSlice(found.metadata, found.address_type, endpoints, found.ports)

    def forget(self, name: str) -> None:
        self._last.pop(name, None)

    def retain(self, slices: tuple[EndpointSlice, ...]) -> None:
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
    return _decode_endpoints(b"[%b]" % b",".join(raw))
