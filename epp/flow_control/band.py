"""The requests of one priority that wait. Pure."""

import math
from collections import OrderedDict
from itertools import islice
from typing import Final

from epp.flow_control.flow_lengths import FlowBytes, FlowLengths
from epp.flow_control.flow_queue import FlowQueue
from epp.flow_control.queued_request import QueuedRequest
from epp.flow_control.settings import PriorityBand

_MOST_GIVE_WAY: Final = 16
"""Requests that give way to one."""


class Band:
    """Flows of one priority. A flow exists while a request waits in it, so that no client can fill memory with names.

    `ceiling`: of the saturation at which its requests go, as the usage limit policy last said. `used_at`: when the last
    request of this priority came. `bytes`: of what waits, headers and bodies.
    """

    __slots__ = (
        "_bytes_of_flows",
        "_flows",
        "_lengths",
        "_selector",
        "bytes",
        "ceiling",
        "on_demand",
        "priority",
        "settings",
        "used_at",
        "waiting",
    )

    def __init__(self, priority: int, settings: PriorityBand, *, on_demand: bool, now: float) -> None:
        self.priority = priority
        self.settings = settings
        self.on_demand = on_demand
        self.used_at = now
        self.ceiling = 1.0
        self.bytes = 0
        self.waiting: OrderedDict[int, QueuedRequest] = OrderedDict()
        """By their place in the order of arrival: the one that came first is first."""
        self._flows: dict[str, FlowQueue] = {}
        self._selector = settings.fairness.selector()
        self._lengths = FlowLengths() if settings.fairness.shares_places else None
        self._bytes_of_flows = FlowBytes()

    def over(self, size: int) -> tuple[int, int]:
        """By how many requests and bytes it would be too full with one more of that size; 0 or less: it fits."""
        return (
            len(self.waiting) + 1 - self.settings.max_requests,
            self.bytes + size - self.settings.max_bytes,
        )

    def add(self, queued: QueuedRequest) -> None:
        rank = self.settings.ordering.rank(queued)
        queued.rank = math.inf if math.isnan(rank) else rank  # NaN has no place in an order
        name = queued.request.fairness_id
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = FlowQueue(name)
        flow.add(queued)
        if self._lengths is not None:
            self._lengths.grew(flow)
            self._bytes_of_flows.grew(flow, len(self._flows))
        self.waiting[queued.sequence] = queued
        self.bytes += queued.size
        if flow.first is queued:
            self._selector.changed(flow)

    def remove(self, queued: QueuedRequest) -> None:
        flow = self._flows[queued.request.fairness_id]
        self._remove(queued, flow, first=flow.first is queued)

    def _remove(self, queued: QueuedRequest, flow: FlowQueue, *, first: bool) -> None:
        del self.waiting[queued.sequence]
        self.bytes -= queued.size
        flow.remove(queued)
        if self._lengths is not None:
            self._lengths.shrank(flow)
        if not len(flow):
            del self._flows[flow.fairness_id]
        if first:
            self._selector.changed(flow)

    def take(self) -> QueuedRequest:
        """Remove the one that goes next; raises RuntimeError if the fairness policy names none."""
        flow = self._selector.select()
        queued = None if flow is None else flow.first
        if flow is None or queued is None:
            raise RuntimeError(f"the fairness policy of priority {self.priority} named no flow that waits")
        self._selector.dispatched(flow, queued)
        self._remove(queued, self._flows[flow.fairness_id], first=True)
        return queued

    def lengths(self) -> dict[str, int]:
        """How many requests wait in each flow."""
        return {name: len(flow) for name, flow in self._flows.items()}

    def oldest(self) -> QueuedRequest | None:
        """The one that came first."""
        return next(iter(self.waiting.values()), None)

    def gives_way(
        self, fairness_id: str, size: int, over_requests: int, over_bytes: int
    ) -> list[QueuedRequest]:
        """Who gives up their places for one more request of that size; none: it may have none.

        Where there are too many requests, the newest one of the longest flow; where only bytes are too many, the newest
        ones of the flow that holds most. That flow had more than the other one then has, so nobody gains by sending more
        (longest queue drop: Suter et al., Buffer Management Schemes for Supporting TCP in Gigabit Routers with Per-flow
        Queueing, 1999).
        """
        if self._lengths is None or over_requests > 1:
            return []
        own = self._flows.get(fairness_id)
        if over_requests == 1:
            flow = self._lengths.longest()
            if flow is None or len(flow) <= (0 if own is None else len(own)) + 1:
                return []
        else:
            flow = self._bytes_of_flows.heaviest()
            if flow is None or flow.bytes <= (0 if own is None else own.bytes) + size:
                return []
        leave: list[QueuedRequest] = []
        for queued in islice(flow.newest(), over_requests if over_requests > 0 else _MOST_GIVE_WAY):
            leave.append(queued)
            over_bytes -= queued.size
            if over_bytes <= 0:
                return leave
        return []

    def newest(self) -> QueuedRequest | None:
        """The one that came last."""
        return next(reversed(self.waiting.values()), None)
