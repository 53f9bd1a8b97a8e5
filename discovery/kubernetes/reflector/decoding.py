"""Decodes lists and watch events of any resource, for a Reflector; compares resourceVersions. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from discovery.kubernetes.api.refusal import Status, decode_error


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`continue_token` asks for the next page; empty on the last one."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class RawList(msgspec.Struct, frozen=True):
    """One page of a list of any kind."""

    kind: str
    metadata: ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class BookmarkObject(msgspec.Struct, frozen=True):
    metadata: ListMeta


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


decode_raw_list = msgspec.json.Decoder(RawList).decode
decode_raw_event = msgspec.json.Decoder(RawEvent).decode
decode_bookmark = msgspec.json.Decoder(BookmarkObject).decode


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


T = TypeVar("T")


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


class ResourceDecoder(Protocol[T]):
    """Its methods raise msgspec.DecodeError, UnicodeDecodeError or RecursionError for what no API server sends."""

    def page(self, body: bytes) -> Page[T]: ...

    def event(self, line: bytes) -> WatchEvent[T]: ...

    def retain(self, objects: tuple[T, ...]) -> None:
        """These are all objects now: whatever is remembered of others may be forgotten."""
        ...


class WholeDecoder(Generic[T]):
    """Decodes each object anew by `decode`. `identity`: its name and version."""

    def __init__(self, decode: Callable[[msgspec.Raw], T], identity: Callable[[T], tuple[str, str]]) -> None:
        self._decode = decode
        self._identity = identity

    def page(self, body: bytes) -> Page[T]:
        found = decode_raw_list(body)
        if not found.kind.endswith("List"):  # another document must not count as an empty list
            raise msgspec.ValidationError(f"its kind is {found.kind[:100]!r}, expected a list")
        objects = tuple([self._decode(item) for item in found.items or ()])
        for each in objects:
            self._identity(each)
        return Page(objects, found.metadata.resource_version, found.metadata.continue_token)

    def event(self, line: bytes) -> WatchEvent[T]:
        event = decode_raw_event(line)
        match event.type:
            case "BOOKMARK":
                return BookmarkEvent(decode_bookmark(event.object))
            case "ERROR":
                return ErrorEvent(decode_error(event.object))
        found = self._decode(event.object)
        name, version = self._identity(found)
        return ObjectEvent(name, version, None if event.type == "DELETED" else found)

    def retain(self, objects: tuple[T, ...]) -> None:
        """Nothing is remembered."""


_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


def json_decoder() -> WholeDecoder[dict[str, Any]]:
    """For objects as they are in JSON."""
    return WholeDecoder(_decode_json, _json_identity)


def _json_identity(found: dict[str, Any]) -> tuple[str, str]:
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    version = metadata.get("resourceVersion", "") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not isinstance(version, str):
        raise msgspec.ValidationError("an object without metadata.name")
    return name, version
