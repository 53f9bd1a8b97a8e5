"""Takes requests of negative priority back from their workers, so that those of a higher priority need not wait. Pure.

Rules: llm-d-router, pkg/epp/flowcontrol/controller/internal/reclamation.go and pkg/epp/flowcontrol/eviction.
"""

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from adsum.histogram import Histogram
from epp.flow_control import refusals
from epp.plugins.declaration import Role, only_parameters
from epp.scheduling.pick import Pick
from epp.scheduling.saturation import SaturationDetector

BUCKETS: Final[Sequence[float]] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Revocations:
    """`issued`: by the priority that needed room. `confirmed`: their streams ended, `timed_out`: nobody said so in time.

    `target`: what the last decision wanted to free, as a part of the saturation. Priorities are the operator's, so their number
    is bounded.
    """

    def __init__(self) -> None:
        self.issued: dict[int, int] = {}
        self.confirmed = 0
        self.timed_out = 0
        self.durations = Histogram(BUCKETS)
        self.target = 0.0

    def issue(self, priority: int) -> None:
        self.issued[priority] = self.issued.get(priority, 0) + 1

    def confirm(self, seconds: float) -> None:
        self.confirmed += 1
        self.durations.observe(seconds)


_MOST_AT_ONCE: Final = 2
"""Requests that one decision takes back: what they free is an estimate."""
_COUNTED_AFTER: Final = 0.01
_PUBLISHED_AFTER: Final = 0.5
"""Seconds until what a request held is free by what the detector sees: its own count, or the workers' pages."""
_LOST_AFTER: Final = 10.0
"""Seconds after which a request counts as ended though nobody said so."""
_SLACK: Final = 16


class InFlightEviction:
    """Knows the requests of negative priority that are in flight.

    The lowest priority goes first, and of equal ones the one that was sent last: least was computed for it. An answer that
    has begun is not cut. While it is not known what the last decision freed, nothing more is taken back.
    """

    def __init__(self, detector: SaturationDetector) -> None:
        self._in_flight: dict[Pick, None] = {}
        self._order: list[tuple[int, int, Pick]] = []
        self._began = 0
        self._evicted: dict[Pick, float] = {}
        self._open_at = -math.inf
        self._taken = 0.0
        self.revocations = Revocations()
        self.use(detector)

    def use(self, detector: SaturationDetector) -> None:
        """This detector says from now on how full the pool is."""
        self._grace = _COUNTED_AFTER if detector.counts_in_flight else _PUBLISHED_AFTER

    def began(self, pick: Pick) -> None:
        self._began += 1
        self._in_flight[pick] = None
        heappush(self._order, (pick.request.priority, -self._began, pick))
        if len(self._order) > 2 * len(self._in_flight) + _SLACK:
            self._order = [entry for entry in self._order if entry[2] in self._in_flight]
            heapify(self._order)

    def ended(self, pick: Pick, now: float) -> None:
        self._in_flight.pop(pick, None)
        if not self._in_flight:
            self._order.clear()  # with the requests of a burst
        issued_at = self._evicted.pop(pick, None)
        if issued_at is not None:
            self.revocations.confirm(max(0.0, now - issued_at))
            self._open_at = max(self._open_at, now + self._grace)

    def reclaim(self, priority: int, over: float, share: float, now: float) -> float:
        """Take back what a request of that priority waits for; returns when to ask again, inf: not before something ends.

        `over`: by how much the saturation is above the ceiling of that priority; `share`: of it that one request in flight
        has.
        """
        if self._evicted:
            lost_at = min(self._evicted.values()) + _LOST_AFTER
            if now < lost_at:
                return lost_at
            self.revocations.timed_out += len(self._evicted)
            self._evicted.clear()
        if now < self._open_at:
            return self._open_at
        wanted = min(max(1, math.ceil(over / share)), _MOST_AT_ONCE) if share > 0.0 else 0
        self.revocations.target, self._taken = max(0.0, over), 0.0
        while wanted and (pick := self._next(priority)) is not None:
            if self._evict(pick, now):
                self.revocations.issue(priority)
                self._taken += share
                wanted -= 1
        return now + _LOST_AFTER if self._evicted else math.inf

    def pending(self, now: float) -> float:
        """The requests that were taken back and whose room is not known to be free, as a part of the saturation."""
        return self._taken if self._evicted or now < self._open_at else 0.0

    def _evict(self, pick: Pick, now: float) -> bool:
        """Whether it was not too late."""
        del self._in_flight[pick]
        self._evicted[pick] = now
        if pick.evict is not None and pick.evict(refusals.taken_back(pick.request.priority), now):
            return True
        self._evicted.pop(pick, None)
        return False

    def _next(self, below: int) -> Pick | None:
        """The one that goes first, if its priority is lower."""
        while self._order:
            priority, _, pick = self._order[0]
            if pick in self._in_flight:
                return pick if priority < below else None
            heappop(self._order)
        return None


SHEDDABLE_EVICTION_FILTER: Final = only_parameters("sheddable-eviction-filter", Role.EVICTION)
EVICTION_ORDER_POLICY: Final = only_parameters("priority-then-time-eviction-order-policy", Role.EVICTION)
"""The Go picker's names for the only rule there is: requests of negative priority, the lowest and newest first."""
