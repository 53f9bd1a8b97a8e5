"""What slices ever said of a pod, and what a reader was told of it."""

from collections import Counter

from discovery import InstanceAddedEvent, InstanceRemovedEvent
from tests.kubernetes.fake.witness import Witness
from tests.kubernetes.fake.world import World


class Evidence:
    """How often slices began to say that a uid is available (`came`), and that it is not (`went`).

    Lenient where several slices speak of it: each may be the one that counts.
    """

    def __init__(self, world: World) -> None:
        self.came: Counter[str] = Counter()
        self.went: Counter[str] = Counter()
        self._world = world
        self._available: set[str] = set()
        self._doubtful: set[str] = set()
        self._known: set[str] = set()
        self.look()

    def look(self) -> None:
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
        self.came.update(yes - self._available)
        self.went.update(no - self._doubtful)
        self._available, self._doubtful = yes, no


def counts(witness: Witness) -> tuple[Counter[str], Counter[str]]:
    """How often each uid was Added, and Removed."""
    events = [event for _, event in witness.events]
    added = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceAddedEvent))
    removed = Counter(e.instance.incarnation for e in events if isinstance(e, InstanceRemovedEvent))
    return added, removed
