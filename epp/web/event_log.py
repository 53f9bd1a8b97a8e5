"""A log of the endpoints: who came, who went and why, who is avoided. A bounded ring, without a clock."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from adsum.web.live_feed import EventTopic
from discovery import Instance, InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent
from epp.endpoints.endpoint import Endpoint
from epp.web.pool_view import EndpointStatus

MOST: Final = 200
_MOST_TEXT: Final = 300
_TOLD: Final = {
    EndpointStatus.LATE: "late",
    EndpointStatus.UNREACHABLE: "unreachable",
    EndpointStatus.TRIAL: "on trial",
    EndpointStatus.SUSPECT: "avoided",
    EndpointStatus.EJECTED: "ejected",
}
"""The statuses that are events; from one of them to any other, the endpoint is back."""
_LEFT: Final = {
    "not_ready": "it says that it is not ready",
    "terminating": "it drains",
    "replaced": "another worker has its name",
}


class EventLog(EventTopic):
    """`at`: seconds since the epoch. The newest MOST events are kept."""

    def __init__(self) -> None:
        super().__init__(MOST)
        self._before: dict[tuple[str, str], int] = {}

    def add(self, at: float, what: str, name: str, address: str, why: str = "") -> None:
        """`what` is a word of ours; the other texts are cut."""
        cut = {"id": name[:_MOST_TEXT], "address": address[:_MOST_TEXT], "why": why[:_MOST_TEXT]}
        self.append(at=round(at, 1), what=what, **cut)

    def discovered(self, event: InstanceEvent, at: float, why: str | None = None) -> None:
        """`why`: what discovery knows now of one that was removed, in words."""
        who = event.instance.id, event.instance.authority
        if isinstance(event, InstanceAddedEvent):
            self.add(at, "came", *who)
        elif isinstance(event, InstanceRemovedEvent):
            self.add(at, "went", *who, _LEFT.get(event.reason) or _why_deleted(event.instance, why))

    def compare(
        self,
        endpoints: tuple[Endpoint, ...],
        found: NDArray[np.int8],
        causes: dict[tuple[str, str], str],
        at: float,
    ) -> None:
        """Add an event for each endpoint whose status is another one than at the last call. `causes`: of ejections."""
        now = {endpoints[row].key: int(found[row]) for row in np.flatnonzero(np.isin(found, list(_TOLD)))}
        if not now and not self._before:
            return
        for endpoint in endpoints:
            key = endpoint.key
            before, status = self._before.get(key), now.get(key)
            if before == status:
                continue
            if status is None:
                self.add(at, "back", endpoint.id, endpoint.destination)
            else:
                told = EndpointStatus(status)
                self.add(at, _TOLD[told], endpoint.id, endpoint.destination, causes.get(key, _why(told)))
        self._before = now


def _why_deleted(instance: Instance, why: str | None) -> str:
    """A source that no longer lists it cannot tell whether it left or its process ended: say no more than is known."""
    if why:
        return why.partition(";")[0]  # what follows says what to do
    return "it is no longer listed" if instance.reachable else "it did not answer, and is no longer listed"


def _why(status: EndpointStatus) -> str:
    if status is EndpointStatus.LATE:
        return "its metrics page did not come in time"
    if status is EndpointStatus.UNREACHABLE:
        return "it does not answer, or says that it is not ready"
    if status is EndpointStatus.TRIAL:
        return "it gets one request at a time until it answers one"
    return ""
