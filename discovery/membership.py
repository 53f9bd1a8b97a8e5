"""The way from a source's snapshots to the set that watches read: compared once, with silent workers marked."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from discovery.copy_on_write import FrozenDict
from discovery.events import changed_ids
from discovery.instance import Instance, MetadataReader
from discovery.source import PersistentSnapshot, Snapshot
from discovery.watch import Truth


class MembershipReport:
    """The `Report` of one component. Writes `truth`: the READY instances of the last snapshot, of which those are not
    `reachable` that fell silent. `reader` reads their metadata.
    """

    def __init__(self, reader: MetadataReader) -> None:
        self.reader = reader
        self.truth = Truth()
        self.snapshot = Snapshot(())
        self._members: Mapping[str, Instance] = FrozenDict()
        self._silent: dict[str, str] = {}
        """Incarnations by instance id."""

    def __call__(self, snapshot: Snapshot) -> None:
        before, members = self._members, snapshot.instances
        changed = changed_ids(before, members)
        if not isinstance(snapshot, PersistentSnapshot):
            # the same object for an unchanged instance: readers compare by identity first
            new = {i: replace(members[i], reader=self.reader) for i in changed if i in members}
            members = {i: new[i] if i in new else before[i] for i in members}
        self.snapshot, self._members = snapshot, members
        self.truth.replace(self._marked(), snapshot.known, changed)

    def degraded(self, reason: str) -> None:
        self.truth.degrade(reason)

    def is_silent(self, instance: Instance) -> bool:
        return self._silent.get(instance.id) == instance.incarnation

    def mark_silent(self, instance: Instance) -> None:
        """It answered before, and no longer does."""
        if not self.is_silent(instance):
            self._silent[instance.id] = instance.incarnation
            self._publish_marks((instance.id,))

    def clear_silence(self, ids: Iterable[str] | None = None) -> None:
        """They were heard again, left, or are not followed any more. None: all."""
        cleared = [i for i in (self._silent if ids is None else ids) if i in self._silent]
        for instance_id in cleared:
            del self._silent[instance_id]
        if cleared:
            self._publish_marks(cleared)

    def _publish_marks(self, ids: Iterable[str]) -> None:
        if self.truth.error is None:
            self.truth.replace(self._marked(), self.snapshot.known, ids, self.truth.health)

    def _marked(self) -> Mapping[str, Instance]:
        members = self._members
        found = (members[i] for i in self._silent if i in members)
        marked = {one.id: replace(one, reachable=False) for one in found if self.is_silent(one)}
        if not marked:
            return members
        return members.updated(marked) if isinstance(members, FrozenDict) else {**members, **marked}
