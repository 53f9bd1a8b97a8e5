"""Which request of a flow goes first. Pure.

Deadlines: llm-d-router, plugins/flowcontrol/ordering/edf and slodeadline.
"""

import math
import re
from dataclasses import dataclass
from typing import Final, Protocol

from epp.flow_control.flow_queue import QueuedRequest
from epp.plugins.declaration import PluginDeclaration, Role
from epp.request.control_headers import TTFT_SLO


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
    type="fcfs-ordering-policy",
    role=Role.ORDERING,
    build=lambda given, context: FirstComeFirstServed(),
    is_default=True,
)


# bounded: at most 63 characters
_MILLISECONDS: Final = re.compile(r"\+?[0-9]{1,60}")
_MOST_MILLISECONDS: Final = (2**63 - 1) // 10**6
"""Go counts a duration in nanoseconds, as an int64."""


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """The Go picker's edf-ordering-policy: first the request whose time in the queue is up first, last those without a limit."""

    def rank(self, queued: QueuedRequest) -> float:
        return queued.arrived_at + queued.ttl if queued.ttl > 0 else math.inf


@dataclass(frozen=True, slots=True)
class SloDeadline:
    """The Go picker's slo-deadline-ordering-policy: first the request whose first token is due first, by its header.

    Requests without that header come last, and so do those whose header is no whole number of milliseconds.
    """

    def rank(self, queued: QueuedRequest) -> float:
        headers = queued.request.headers
        milliseconds = _milliseconds(headers.get(TTFT_SLO[0], headers.get(TTFT_SLO[1], "")))
        if milliseconds is None:
            return math.inf
        return round(queued.arrived_at + milliseconds / 1000.0, 6)  # equal deadlines are equal numbers


def _milliseconds(text: str) -> int | None:
    found = _MILLISECONDS.fullmatch(text.strip()) if len(text) < 64 else None
    value = None if found is None else int(found[0])
    return None if value is None or value > _MOST_MILLISECONDS else value


EDF_ORDERING_POLICY: Final = PluginDeclaration(
    type="edf-ordering-policy", role=Role.ORDERING, build=lambda given, context: EarliestDeadlineFirst()
)
SLO_DEADLINE_ORDERING_POLICY: Final = PluginDeclaration(
    type="slo-deadline-ordering-policy", role=Role.ORDERING, build=lambda given, context: SloDeadline()
)
