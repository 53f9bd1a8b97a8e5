"""Decodes lists and watch events of one resource, for a Reflector. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from discovery.kubernetes.wire import (
    BookmarkEvent,
    ErrorEvent,
    decode_bookmark,
    decode_error,
    decode_raw_event,
    decode_raw_list,
)

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
