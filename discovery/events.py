"""The events of a watch, and `diff`, which derives them from two sets of instances."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import Generic, Literal, Protocol, TypeAlias

from typing_extensions import TypeVar

from discovery.copy_on_write import differing_parts
from discovery.instance import Instance, InstanceStatus

RemovalReason: TypeAlias = Literal["deleted", "not_ready", "terminating", "replaced"]

InstanceT = TypeVar("InstanceT", bound=Instance, default=Instance)


class _HasInstance(Protocol):
    @property
    def instance(self) -> Instance: ...


class _Shortcuts:
    __slots__ = ()

    @property
    def instance_id(self: _HasInstance) -> str:
        return self.instance.id

    @property
    def address(self: _HasInstance) -> str:
        return self.instance.address


@dataclass(frozen=True, slots=True)
class InstanceAddedEvent(_Shortcuts, Generic[InstanceT]):
    """A READY instance that is new to the reader."""

    instance: InstanceT


@dataclass(frozen=True, slots=True)
class InstanceUpdatedEvent(_Shortcuts, Generic[InstanceT]):
    """The same incarnation with another address, port, labels, revision or reachability."""

    old: InstanceT
    new: InstanceT

    @property
    def instance(self) -> InstanceT:
        return self.new


@dataclass(frozen=True, slots=True)
class InstanceRemovedEvent(_Shortcuts, Generic[InstanceT]):
    """No longer an instance; `instance` is as the reader last had it."""

    instance: InstanceT
    reason: RemovalReason


InstanceEvent: TypeAlias = (
    InstanceAddedEvent[InstanceT] | InstanceUpdatedEvent[InstanceT] | InstanceRemovedEvent[InstanceT]
)


def diff(
    delivered: Mapping[str, Instance],
    current: Mapping[str, Instance],
    known: Mapping[str, Instance],
    ids: Collection[str],
) -> Iterator[InstanceEvent]:
    """The events that bring a reader from the set `delivered` to the set `current`, about `ids` only. Removals first: an
    address that moved to another instance never has two. All mappings are by id.

    `known` has all candidates, also those that are not READY: the reason of a removal follows from it. The caller may
    update `delivered` with each event while it iterates.
    """
    for old, new in ((delivered[i], current.get(i)) for i in ids if i in delivered):
        if new is None or new.incarnation != old.incarnation:
            yield InstanceRemovedEvent(old, _reason(old, known.get(old.id)))
    for before, new in ((delivered.get(i), current[i]) for i in ids if i in current):
        if before is None or before.incarnation != new.incarnation:
            yield InstanceAddedEvent(new)
        elif before is not new and before != new:
            yield InstanceUpdatedEvent(before, new)


def changed_ids(old: Mapping[str, Instance], new: Mapping[str, Instance]) -> list[str]:
    """The ids that were added, removed or changed. Parts that both sets share are not compared."""
    changed: list[str] = []
    for before, after in differing_parts(old, new):
        changed += [i for i in before if i not in after]
        if not before:
            changed += after
            continue
        # identity first, without a loop in Python: of thousands almost all are the same objects
        others = compress(after, map(is_not, map(before.get, after), after.values()))
        changed += [i for i in others if i not in before or before[i] != after[i]]
    return changed


def _reason(old: Instance, now: Instance | None) -> RemovalReason:
    if now is None:
        return "deleted"
    if now.incarnation != old.incarnation:
        return "replaced"
    return "terminating" if now.status is InstanceStatus.DRAINING else "not_ready"
