"""The last changes of a component: who came, who changed, who left and why, and whether the source answered."""

from collections.abc import Iterator
from typing import Final, Literal

from adsum.web.live_feed import EventTopic
from discovery.events import InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent
from discovery.instance import Instance, InstanceStatus

KEPT: Final = 500
"""Changes; each is some hundred bytes."""
LONGEST_TEXT: Final = 300
"""Characters of a reason or a detail that are kept."""
ChangeKind = Literal["added", "updated", "removed", "registered", "left", "degraded", "synced"]


class MembershipLog(EventTopic):
    """The newest `KEPT` changes. `at`: Unix seconds."""

    def __init__(self) -> None:
        super().__init__(KEPT)

    def instance_event(self, at: float, event: InstanceEvent, why: str | None) -> None:
        """`why`: what is known of a removed one now."""
        if isinstance(event, InstanceAddedEvent):
            self.add(at, "added", event.instance_id, event.instance.url)
        elif isinstance(event, InstanceRemovedEvent):
            self.add(at, "removed", event.instance_id, why, reason=event.reason)
        else:
            self.add(at, "updated", event.instance_id, ", ".join(_differences(event.old, event.new)))

    def candidate_came(self, at: float, candidate: Instance) -> None:
        """One that is new and no instance. A ready one only waits for its metadata, most often for no time."""
        if candidate.status is not InstanceStatus.READY:
            self.add(at, "registered", candidate.id, f"its status is {candidate.status}")

    def candidate_left(self, at: float, id: str, why: str | None) -> None:
        """One that is gone and was no instance."""
        self.add(at, "left", id, why)

    def add(
        self,
        at: float,
        kind: ChangeKind,
        id: str | None = None,
        detail: str | None = None,
        reason: str | None = None,
    ) -> None:
        """`id` None: a change of the source. `reason`: of a removal, as the events of discovery have it. `detail`: in words.

        `registered` and `left`: of a candidate that was no instance.
        """
        cut = detail[:LONGEST_TEXT] if detail else None
        self.append(time=at, event=kind, id=id, reason=reason, detail=cut)


def _differences(old: Instance, new: Instance) -> Iterator[str]:
    if old.reachable != new.reachable:
        yield "reachable again" if new.reachable else "unreachable"
    if old.url != new.url:
        yield f"serves at {new.url}, before at {old.url}"
    elif old.authority != new.authority:
        yield f"registered at {new.authority}, before at {old.authority}"
    if old.revision != new.revision:
        yield "its metadata changed"
    if old.labels != new.labels:
        yield "its labels changed"
