"""Events of a Reflector: changes of its copy of the objects, and whether the copy is in sync. Pure."""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectsListed(Generic[T]):
    """A complete list: it replaces all objects that were known."""

    objects: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class ObjectUpdated(Generic[T]):
    """One object was added or modified."""

    object: T


@dataclass(frozen=True, slots=True)
class ObjectDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class SyncLost:
    """The copy may be out of date. `code`: the HTTP status that caused it, None without an answer."""

    reason: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class SyncRestored:
    """After SyncLost: the server answers again, and nothing has changed so far."""


ReflectorEvent: TypeAlias = ObjectsListed[T] | ObjectUpdated[T] | ObjectDeleted | SyncLost | SyncRestored
