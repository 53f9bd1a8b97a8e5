"""Which request of a flow goes first. Pure.

Deadlines: llm-d-router, plugins/flowcontrol/ordering/edf and slodeadline.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from epp.flow_control.flow_queue import QueuedRequest
from epp.plugins.declaration import Role, without_parameters
from epp.request.control_headers import ttft_slo


class OrderingPolicy(Protocol):
    """Ranks the requests of a flow; one object may serve many bands and keeps no state."""

    def rank(self, queued: QueuedRequest) -> float:
        """The lowest goes first, equal ones in the order of arrival. Asked once, when the request comes to wait."""


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """The Go picker's fcfs-ordering-policy: the order of arrival."""

    def rank(self, queued: QueuedRequest) -> float:
        return 0.0


FCFS_ORDERING_POLICY: Final = without_parameters(
    "fcfs-ordering-policy", Role.ORDERING, FirstComeFirstServed, is_default=True
)


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """The Go picker's edf-ordering-policy: first the request whose time in the queue is up first, last those without a limit."""

    def rank(self, queued: QueuedRequest) -> float:
        return queued.arrived_at + queued.ttl if queued.ttl > 0 else math.inf


@dataclass(frozen=True, slots=True)
class SloDeadline:
    """The Go picker's slo-deadline-ordering-policy, by slack: first the request that must go first for its first token to come by
    the time that its header names.

    That is this time minus what its worker is expected to take, where that is foreseen. Requests without the header come last,
    and so do those whose header is no whole number of milliseconds.
    """

    foresees: ClassVar[bool] = True
    """`QueuedRequest.expected` is to be known before it is asked."""

    def rank(self, queued: QueuedRequest) -> float:
        slo = ttft_slo(queued.request.headers)
        if slo is None:
            return math.inf
        # equal deadlines are equal numbers
        return round(queued.arrived_at + slo - max(0.0, queued.expected), 6)


EDF_ORDERING_POLICY: Final = without_parameters("edf-ordering-policy", Role.ORDERING, EarliestDeadlineFirst)
SLO_DEADLINE_ORDERING_POLICY: Final = without_parameters(
    "slo-deadline-ordering-policy", Role.ORDERING, SloDeadline
)
