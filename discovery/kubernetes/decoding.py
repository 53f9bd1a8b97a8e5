"""Slices decoded: an endpoint whose bytes did not change is the object that it was, and is not decoded again."""

from itertools import compress
from operator import ne

import msgspec

from discovery.kubernetes.wire import EndpointSlice, RawSlice, SliceEndpoint, decode_endpoints


class SliceDecoder:
    """Remembers each slice by name as it was last. Equal bytes only ever stand for equal content: what was decoded
    from them may be shared.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[msgspec.Raw, ...], tuple[SliceEndpoint, ...]]] = {}

    def decoded(self, found: RawSlice) -> EndpointSlice:
        """The slice with its endpoints. Raises msgspec.DecodeError or UnicodeDecodeError when they do not fit."""
        endpoints: tuple[SliceEndpoint, ...] | None = None
        if found.endpoints is not None:
            endpoints = self._shared(found.endpoints, *self._last.get(found.metadata.name, ((), ())))
            self._last[found.metadata.name] = found.endpoints, endpoints
        return EndpointSlice(found.metadata, found.address_type, endpoints, found.ports)

    def listed(self, found: tuple[RawSlice, ...]) -> tuple[EndpointSlice, ...]:
        """As `decoded`, of a page."""
        return tuple([self.decoded(each) for each in found])

    def forget(self, name: str) -> None:
        """That slice is gone."""
        self._last.pop(name, None)

    def keep(self, slices: tuple[EndpointSlice, ...]) -> None:
        """Only these are left."""
        names = {each.metadata.name for each in slices}
        self._last = {name: last for name, last in self._last.items() if name in names}

    def _shared(
        self, raw: tuple[msgspec.Raw, ...], old_raw: tuple[msgspec.Raw, ...], old: tuple[SliceEndpoint, ...]
    ) -> tuple[SliceEndpoint, ...]:
        if len(raw) != len(old_raw):
            return _by_bytes(raw, dict(zip(map(bytes, old_raw), old, strict=True)))
        changed = list(compress(range(len(raw)), map(ne, raw, old_raw)))
        if not changed:
            return old
        endpoints = list(old)
        for place, endpoint in zip(changed, _decode([raw[place] for place in changed]), strict=True):
            endpoints[place] = endpoint
        return tuple(endpoints)


def _by_bytes(raw: tuple[msgspec.Raw, ...], known: dict[bytes, SliceEndpoint]) -> tuple[SliceEndpoint, ...]:
    """Endpoints came or went, so that others moved to another place."""
    if not known:
        return _decode(raw)
    return tuple([known.get(bytes(each)) or _decode([each])[0] for each in raw])


def _decode(raw: list[msgspec.Raw] | tuple[msgspec.Raw, ...]) -> tuple[SliceEndpoint, ...]:
    return decode_endpoints(b"[%b]" % b",".join(raw))
