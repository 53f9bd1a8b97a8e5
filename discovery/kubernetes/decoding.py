"""Decodes slices; an endpoint whose bytes have not changed is not decoded again, and stays the same object."""

from itertools import compress
from operator import ne

import msgspec

from discovery.kubernetes.resource_decoder import ObjectEvent, Page, WatchEvent
from discovery.kubernetes.wire import (
    BookmarkEvent,
    DeletedEvent,
    EndpointSlice,
    ErrorEvent,
    RawSlice,
    SliceEndpoint,
    decode_endpoints,
    decode_event,
    decode_list,
)


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
