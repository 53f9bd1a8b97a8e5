"""What a watch tells its reader, and the rule by which it is found: the difference between two sets."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import Generic, Literal, Protocol, TypeAlias

from typing_extensions import TypeVar

from discovery.copy_on_write import unshared
from discovery.instance import Instance, InstanceStatus

RemovalReason: TypeAlias = Literal["deleted", "not_ready", "terminating", "replaced"]

InstanceT = TypeVar("InstanceT", bound=Instance, default=Instance)


class _AboutInstance(Protocol):
    @property
    def instance(self) -> Instance: ...


class _Shortcuts:
    __slots__ = ()

    @property
    def instance_id(self: _AboutInstance) -> str:
        return self.instance.id

    @property
    def address(self: _AboutInstance) -> str:
        return self.instance.address


@dataclass(frozen=True, slots=True)
class InstanceAddedEvent(_Shortcuts, Generic[InstanceT]):
    """A READY instance that the reader does not know yet."""

    instance: InstanceT


@dataclass(frozen=True, slots=True)
class InstanceUpdatedEvent(_Shortcuts, Generic[InstanceT]):
    """The same incarnation, but its address, port, labels, revision or reachability changed."""

    old: InstanceT
    new: InstanceT

    @property
    def instance(self) -> InstanceT:
        return self.new


@dataclass(frozen=True, slots=True)
class InstanceRemovedEvent(_Shortcuts, Generic[InstanceT]):
    """Not an instance any more; `instance` is as it was last told."""

    instance: InstanceT
    reason: RemovalReason


InstanceEvent: TypeAlias = (
    InstanceAddedEvent[InstanceT] | InstanceUpdatedEvent[InstanceT] | InstanceRemovedEvent[InstanceT]
)


def diff(
    told: Mapping[str, Instance],
    truth: Mapping[str, Instance],
    known: Mapping[str, Instance],
    ids: Collection[str],
) -> Iterator[InstanceEvent]:
    """What a reader who was told `told` must hear of `ids` so that it knows `truth`; removals first. All by id.

    `known` holds every candidate whatever its status: the reason of a removal follows from it. `told` may be brought
    up to date with each event as it comes.
    """
    for old, new in ((told[i], truth.get(i)) for i in ids if i in told):
        if new is None or new.incarnation != old.incarnation:
            yield InstanceRemovedEvent(old, _reason(old, known.get(old.id)))
    for before, new in ((told.get(i), truth[i]) for i in ids if i in truth):
        if before is None or before.incarnation != new.incarnation:
            yield InstanceAddedEvent(new)
        elif before is not new and before != new:
            yield InstanceUpdatedEvent(before, new)


def changed_ids(old: Mapping[str, Instance], new: Mapping[str, Instance]) -> list[str]:
    """The ids that two sets do not agree on. What both share is not looked at."""
    changed: list[str] = []
    for before, after in unshared(old, new):
        changed += [i for i in before if i not in after]
        if not before:
            changed += after
            continue
        others = compress(after, map(is_not, map(before.get, after), after.values()))
        changed += [i for i in others if i not in before or before[i] != after[i]]
    return changed


def _reason(old: Instance, now: Instance | None) -> RemovalReason:
    if now is None:
        return "deleted"
    if now.incarnation != old.incarnation:
        return "replaced"
    return "terminating" if now.status is InstanceStatus.DRAINING else "not_ready"
