"""Decodes lists and watch events of any resource, for a Reflector; compares resourceVersions. Pure.

Structs have the names and fields of the API (meta/v1), as far as we read them; unknown fields are skipped.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from discovery.kubernetes.api.refusal import Status

T = TypeVar("T")


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`continue_token` asks for the next page; empty on the last one."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class ObjectList(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. `kind` is required: another document must not count as an empty list."""

    kind: str
    metadata: ListMeta
    items: tuple[T, ...] | None = None


class AddedEvent(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="ADDED"):
    object: T


class ModifiedEvent(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="MODIFIED"):
    object: T


class DeletedEvent(msgspec.Struct, Generic[T], frozen=True, tag_field="type", tag="DELETED"):
    """`object`: as it was before its deletion, but with the resourceVersion of this event."""

    object: T


class BookmarkObject(msgspec.Struct, frozen=True):
    metadata: ListMeta


class BookmarkEvent(msgspec.Struct, frozen=True, tag_field="type", tag="BOOKMARK"):
    """All changes up to this resourceVersion have been sent."""

    object: BookmarkObject


class ErrorEvent(msgspec.Struct, frozen=True, tag_field="type", tag="ERROR"):
    """An error after the headers were sent, such as 410 Gone. The server ends the stream."""

    object: Status


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `continue_token` asks for the next one; empty on the last."""

    objects: tuple[T, ...]
    resource_version: str
    continue_token: str


@dataclass(frozen=True, slots=True)
class ObjectEvent(Generic[T]):
    """One object was added or modified; `object` None: deleted. The version is that of the change."""

    name: str
    resource_version: str
    object: T | None


WatchEvent: TypeAlias = ObjectEvent[T] | BookmarkEvent | ErrorEvent


class ResourceDecoder(Generic[T]):
    """Decodes objects as `kind`, in one pass. `page` and `event` raise msgspec.DecodeError, UnicodeDecodeError or
    RecursionError for what no API server sends. `list_kind`: how the kind of a list ends.
    """

    def __init__(self, kind: Any, list_kind: str = "List") -> None:
        self._list_kind = list_kind
        self._decode_list = msgspec.json.Decoder(ObjectList[kind]).decode
        self._decode_event = msgspec.json.Decoder(
            AddedEvent[kind] | ModifiedEvent[kind] | DeletedEvent[kind] | BookmarkEvent | ErrorEvent
        ).decode

    def page(self, body: bytes) -> Page[T]:
        found = self._decode_list(body)
        if not found.kind.endswith(self._list_kind):  # another document must not count as an empty list
            raise msgspec.ValidationError(f"its kind is {found.kind[:100]!r}, expected a list")
        objects = tuple([self.finish(item) for item in found.items or ()])
        return Page(objects, found.metadata.resource_version, found.metadata.continue_token)

    def event(self, line: bytes) -> WatchEvent[T]:
        match self._decode_event(line):
            case BookmarkEvent() | ErrorEvent() as event:
                return event
            case DeletedEvent(deleted):
                name, version = self.identity(deleted)
                self.forget(name)
                return ObjectEvent(name, version, None)
            case event:
                return ObjectEvent(*self.identity(event.object), self.finish(event.object))

    def identity(self, found: Any) -> tuple[str, str]:
        """Its name and version."""
        return found.metadata.name, found.metadata.resource_version

    def finish(self, found: Any) -> T:
        """Decodes what `kind` leaves undecoded."""
        return found  # type: ignore[no-any-return]

    def forget(self, name: str) -> None:
        """The object was deleted."""

    def retain(self, objects: tuple[T, ...]) -> None:
        """These are all objects now: whatever is remembered of others may be forgotten."""


class JsonDecoder(ResourceDecoder[dict[str, Any]]):
    """For objects as they are in JSON."""

    def __init__(self) -> None:
        super().__init__(dict[str, Any])

    def identity(self, found: dict[str, Any]) -> tuple[str, str]:
        metadata = found.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        version = metadata.get("resourceVersion", "") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not isinstance(version, str):
            raise msgspec.ValidationError("an object without metadata.name")
        return name, version

    def finish(self, found: dict[str, Any]) -> dict[str, Any]:
        self.identity(found)
        return found


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
