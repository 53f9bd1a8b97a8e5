"""Events of a Reflector: changes of its copy of the slices, and whether the copy is in sync. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from discovery.kubernetes.wire import EndpointSlice


@dataclass(frozen=True, slots=True)
class SlicesListed:
    """A complete list: it replaces all slices that were known."""

    slices: tuple[EndpointSlice, ...]


@dataclass(frozen=True, slots=True)
class SliceUpdated:
    """One slice was added or modified."""

    slice: EndpointSlice


@dataclass(frozen=True, slots=True)
class SliceDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class SyncLost:
    """The copy may be out of date. `code`: the HTTP status that caused it, None without an answer."""

    reason: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class SyncRestored:
    """After SyncLost: the server answers again, and nothing has changed so far."""


ReflectorEvent: TypeAlias = SlicesListed | SliceUpdated | SliceDeleted | SyncLost | SyncRestored
