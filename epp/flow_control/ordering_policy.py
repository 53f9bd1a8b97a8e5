"""Which request of a flow goes first. Pure."""

from dataclasses import dataclass
from typing import Final, Protocol

from epp.flow_control.queued_request import QueuedRequest
from epp.plugins.declaration import PluginDeclaration, Role


class OrderingPolicy(Protocol):
    """Ranks the requests of a flow; one object may serve many bands and keeps no state."""

    def rank(self, queued: QueuedRequest) -> float:
        """The lowest goes first, equal ones in the order of arrival. Asked once, when the request comes to wait."""


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """The Go picker's fcfs-ordering-policy: the order of arrival."""

    def rank(self, queued: QueuedRequest) -> float:
        return 0.0


FCFS_ORDERING_POLICY: Final = PluginDeclaration(
    type="fcfs-ordering-policy", role=Role.ORDERING, build=lambda given, context: FirstComeFirstServed()
)
