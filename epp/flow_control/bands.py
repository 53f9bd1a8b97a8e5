"""The requests that wait, in bands of one priority each, and who has to leave where a band or all of them are full. Pure."""

import math
from collections import OrderedDict
from itertools import islice
from typing import Final

from epp.flow_control import refusals
from epp.flow_control.flow_queue import FlowQueue, LargestFlow, QueuedRequest, bytes_held
from epp.flow_control.pool_load import PoolLoad
from epp.flow_control.settings import FlowControlSettings, PriorityBand
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.waiting import WaitingRequest

_MOST_GIVE_WAY: Final = 16
"""Requests that give way to one."""


class Band:
    """Flows of one priority. A flow exists while a request waits in it, so that no client can fill memory with names.

    `ceiling`: of the saturation at which its requests go, as the usage limit policy last said. `used_at`: when the last
    request of this priority came. `bytes`: of what waits, headers and bodies.
    """

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
        self._longest = LargestFlow(len)
        self._heaviest = LargestFlow(lambda flow: flow.bytes)

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
        if self.settings.fairness.shares_places:
            self._longest.grew(flow, len(self._flows))
            self._heaviest.grew(flow, len(self._flows))
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
        """The requests that give up their places for one more of that size; none: it may have none.

        Where there are too many requests, the newest one of the longest flow; where only bytes are too many, the newest
        ones of the flow that holds most. That flow had more than the other one then has, so nobody gains by sending more
        (longest queue drop: Suter et al., Buffer Management Schemes for Supporting TCP in Gigabit Routers with Per-flow
        Queueing, 1999).
        """
        if not self.settings.fairness.shares_places or over_requests > 1:
            return []
        own = self._flows.get(fairness_id)
        if over_requests == 1:
            flow = self._longest.find()
            if flow is None or len(flow) <= (0 if own is None else len(own)) + 1:
                return []
        else:
            flow = self._heaviest.find()
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


class Bands:
    """All bands that exist, in `all` the highest priority first. `queued`: what waits in them; `bytes`: of all of it."""

    def __init__(self, settings: FlowControlSettings, load: PoolLoad) -> None:
        self._settings = settings
        self._load = load
        self._by_priority: dict[int, Band] = {}
        self._idle_from = -math.inf
        self.all: list[Band] = []
        self.queued: dict[WaitingRequest, QueuedRequest] = {}
        self.bytes = 0
        for priority in {0, *settings.bands}:
            self.of(priority, 0.0)

    def of(self, priority: int, now: float) -> Band:
        """The band of that priority, made if it does not exist."""
        band = self._by_priority.get(priority)
        if band is None:
            band = self._by_priority[priority] = self._new(priority, now)
            self.all.append(band)
            self.all.sort(key=_by_priority, reverse=True)
            self.set_ceilings()
        return band

    def _new(self, priority: int, now: float) -> Band:
        settings = self._settings
        given = settings.bands.get(priority)
        default = settings.default_band
        if priority < 0 and settings.default_negative_band is not None:
            default = settings.default_negative_band
        return Band(priority, given or default, on_demand=given is None and priority != 0, now=now)

    def collect_idle(self, now: float) -> None:
        """Forget bands that were made on demand, once nobody used them for long."""
        idle = self._settings.idle_band
        if now < self._idle_from:
            return
        self._idle_from = now + idle / 2
        for band in [one for one in self.all if one.on_demand and not one.waiting]:
            if now - band.used_at >= idle:
                self.all.remove(band)
                del self._by_priority[band.priority]

    def set_ceilings(self) -> None:
        """A lower priority never has a higher ceiling: it could not be reached."""
        priorities = [band.priority for band in self.all]
        given = self._settings.usage_limit.ceilings(self._load.saturation, priorities)
        lowest = math.inf
        for band, ceiling in zip(self.all, given, strict=True):
            lowest = min(lowest, ceiling)
            band.ceiling = lowest

    def ceiling_of(self, priority: int, saturation: float) -> float:
        """As `set_ceilings` would set it, for a priority that may have no band yet."""
        priorities = sorted({priority, *self._by_priority}, reverse=True)
        given = self._settings.usage_limit.ceilings(saturation, priorities)
        return min(given[: priorities.index(priority) + 1])

    def waits_at_or_above(self, priority: int) -> bool:
        for band in self.all if self.queued else ():
            if band.priority < priority:
                return False
            if band.waiting:
                return True
        return False

    def highest_waiting(self) -> Band | None:
        for band in self.all:
            if band.waiting:
                return band
        return None

    def add(self, queued: QueuedRequest, now: float) -> None:
        self.of(queued.request.priority, now).add(queued)
        self.queued[queued.waiting] = queued
        self.bytes += queued.size

    def take(self, band: Band) -> QueuedRequest:
        """Remove the request that goes next."""
        queued = band.take()
        self.bytes -= queued.size
        del self.queued[queued.waiting]
        return queued

    def forget(self, queued: QueuedRequest) -> None:
        """Remove a request that gets no pick."""
        del self.queued[queued.waiting]
        queued.request.prompt = queued.request.body = (
            None  # a heap may know it for longer, and it refers to the whole body
        )
        self.bytes -= queued.size
        self._by_priority[queued.request.priority].remove(queued)

    def has_room(self, request: InferenceRequest, now: float) -> bool:
        """Whether it may wait, at least in place of others."""
        band = self._by_priority.get(request.priority) or self._new(request.priority, now)
        return self._gives_way(band, request) is not None or self._may_evict(band, bytes_held(request))

    def make_room(
        self, band: Band, request: InferenceRequest
    ) -> list[tuple[QueuedRequest, Rejection]] | None:
        """Remove those that must leave for the request to wait in the band. Returns them and their answers; None: no room."""
        leave = self._gives_way(band, request)
        if leave is None:
            return self._evict(band, bytes_held(request))
        for other in leave:
            self.forget(other)
        return [(other, refusals.gave_way(band.priority)) for other in leave]

    def _gives_way(self, band: Band, request: InferenceRequest) -> list[QueuedRequest] | None:
        """The requests that must leave for this one to wait in the band; None: that makes no room, or a lower band has to."""
        size = bytes_held(request)
        requests, in_bytes = map(max, band.over(size), self._over(size))
        if requests <= 0 and in_bytes <= 0:
            return []
        if self._may_evict(band, size):
            return None
        return band.gives_way(request.fairness_id, size, requests, in_bytes) or None

    def _over(self, size: int) -> tuple[int, int]:
        """By how many requests and bytes all bands would be too full with one more of that size."""
        most, most_bytes = self._settings.max_requests, self._settings.max_bytes
        return (
            0 if most is None else len(self.queued) + 1 - most,
            0 if most_bytes is None else self.bytes + size - most_bytes,
        )

    def _fits(self, size: int, *, without: int = 0, without_bytes: int = 0) -> bool:
        requests, in_bytes = self._over(size)
        return requests <= without and in_bytes <= without_bytes

    def _sheddable(self) -> list[Band]:
        return [band for band in reversed(self.all) if band.priority < 0 and band.waiting]

    def _may_evict(self, band: Band, size: int) -> bool:
        """Whether its band has room, and all bands would have some without those that may be evicted."""
        if not self._settings.eviction or band.priority < 0 or max(band.over(size)) > 0:
            return False
        sheddable = self._sheddable()
        count, held = sum(len(one.waiting) for one in sheddable), sum(one.bytes for one in sheddable)
        return self._fits(size, without=count, without_bytes=held)

    def _evict(self, for_band: Band, size: int) -> list[tuple[QueuedRequest, Rejection]] | None:
        """Remove requests below 0, lowest priority and latest arrival first, until there is room."""
        if not self._may_evict(for_band, size):
            return None
        evicted: list[tuple[QueuedRequest, Rejection]] = []
        for band in self._sheddable():
            while not self._fits(size) and (newest := band.newest()) is not None:
                self.forget(newest)
                evicted.append((newest, refusals.evicted(band.priority)))
        return evicted


def _by_priority(band: Band) -> int:
    return band.priority
