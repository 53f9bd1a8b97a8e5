"""Which request of a flow goes first. Pure."""

from dataclasses import dataclass
from typing import Protocol

from epp.flow_control.queued_request import QueuedRequest


class OrderingPolicy(Protocol):
    """Ranks the requests of a flow; one object may serve many bands and keeps no state."""

    def rank(self, queued: QueuedRequest) -> float:
        """The lowest goes first, equal ones in the order of arrival. Asked once, when the request comes to wait."""


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """The Go picker's fcfs-ordering-policy: the order of arrival."""

    def rank(self, queued: QueuedRequest) -> float:
        return 0.0
