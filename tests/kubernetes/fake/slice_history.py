"""Counts how often slices showed a pod as available, and how often a reader was told so."""

from collections import Counter

from discovery import InstanceAddedEvent, InstanceRemovedEvent
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.kubernetes.fake.world import World


class SliceHistory:
    """How often slices began to show a uid as available, and as not available.

    If several slices have the pod, each may be the one that counts: then both are counted.
    """

    def __init__(self, world: World) -> None:
        self.became_available: Counter[str] = Counter()
        self.became_unavailable: Counter[str] = Counter()
        self._world = world
        self._available: set[str] = set()
        self._doubtful: set[str] = set()
        self._known: set[str] = set()
        self.record()

    def record(self) -> None:
        yes: set[str] = set()
        no: set[str] = set()
        uids_of: dict[str, set[str]] = {}
        for found in self._world.slices():
            for endpoint in found["endpoints"] or ():
                target = endpoint["targetRef"]
                uids_of.setdefault(target["name"], set()).add(target["uid"])
                conditions = endpoint["conditions"]
                good = conditions["ready"] and conditions["serving"] and not conditions["terminating"]
                (yes if good and found["ports"] else no).add(target["uid"])
        for several in uids_of.values():
            no |= several if len(several) > 1 else set()
        self._known |= yes
        no |= self._known - yes
        self.became_available.update(yes - self._available)
        self.became_unavailable.update(no - self._doubtful)
        self._available, self._doubtful = yes, no


def counts(recorder: EventRecorder) -> tuple[Counter[str], Counter[str]]:
    """How often each uid was Added, and Removed."""
    events = [event for _, event in recorder.events]
    added = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceAddedEvent))
    removed = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceRemovedEvent))
    return added, removed
