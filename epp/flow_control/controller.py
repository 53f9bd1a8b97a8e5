"""Lets requests wait in the picker while the pool is full or empty, and chooses which goes next. Pure."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from epp.endpoints.endpoint import EndpointPool
from epp.flow_control import refusals
from epp.flow_control.band import Band
from epp.flow_control.eviction import InFlightEviction
from epp.flow_control.pool_load import EFFECTIVE, PoolLoad
from epp.flow_control.queued_request import QueuedRequest, bytes_held
from epp.flow_control.settings import FlowControlSettings
from epp.request.inference_request import InferenceRequest
from epp.scheduling.saturation import SaturationDetector
from epp.scheduling.waiting import WaitingRequest

_MOST_IN_A_TURN: Final = 128
"""Requests dispatched in one turn; between two turns others are served."""
_ASK_AGAIN: Final = 0.01
"""Seconds after which a usage limit that changes from call to call is asked again."""
_NEVER: Final = -math.inf


class FlowController:
    """An `AdmissionController`: priorities strictly one after the other, flows and requests as the policies say.

    A request goes at once if nothing of its priority or a higher one waits and the saturation of the pool is below the
    ceiling of its priority. `pool`: all endpoints.
    """

    waits_for_endpoints = True

    def __init__(
        self,
        settings: FlowControlSettings,
        detector: SaturationDetector,
        pool: Callable[[float], EndpointPool],
    ) -> None:
        self._pool = pool
        self._queued: dict[WaitingRequest, QueuedRequest] = {}
        self._arrived = 0
        self._empty = False
        self._empty_changed_at = _NEVER
        self.eviction = InFlightEviction(detector)
        """Takes requests back from their workers, where the settings say so."""
        self._use(settings, detector)

    @property
    def settings(self) -> FlowControlSettings:
        return self._settings

    @property
    def bands(self) -> Sequence[Band]:
        """All that exist, highest priority first."""
        return self._bands

    @property
    def saturation(self) -> float:
        """As it decides about dispatch; as of the last time that it was needed."""
        return self._load.saturation

    @property
    def detector(self) -> SaturationDetector:
        return self._detector

    def saturations(self, now: float) -> dict[str, float]:
        """The same as of now, for who only looks: of each stage, and "effective", which decides."""
        return PoolLoad(self._detector, self._pool).by_stage(now)

    def reconfigure(self, settings: FlowControlSettings, detector: SaturationDetector, now: float) -> None:
        """Use these from now on. What waits keeps its place in the order of arrival, whatever the new limits are."""
        waiting = sorted(self._queued.values(), key=_by_arrival)
        self._use(settings, detector)
        for queued in waiting:
            queued.ttl = settings.request_ttl
            self._band(queued.request.priority, now).add(queued)
            self._bytes += queued.size

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        band = self._by_priority.get(request.priority)
        if band is None:
            band = self._band(request.priority, now)
        band.used_at = now
        if self._queued and self._waits_at_or_above(request.priority):
            return False
        load = self._load
        if self._per_request or load.saturation >= band.ceiling or not load.serves(candidates.state, now):
            self._measure(now)
            if load.saturation >= band.ceiling:
                return False
        load.sent()
        return True

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        priority = request.priority
        blocked = bool(self._queued) and self._waits_at_or_above(priority)
        saturation = self.saturations(now)[EFFECTIVE]
        if not blocked and saturation < self._ceiling_of(priority, saturation):
            return True
        self.would_enqueue(request, now)
        return False

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        request = waiting.request
        band = self._band(request.priority, now)
        band.used_at = now
        self._see_empty(not len(self._pool(now)), now)
        self._make_room(band, request, now)
        self._arrived += 1
        queued = QueuedRequest(request, now, self._settings.request_ttl, self._arrived)
        queued.waiting = waiting
        band.add(queued)
        self._queued[waiting] = queued
        self._bytes += queued.size

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        queued = self._queued.get(waiting)
        if queued is not None:
            self._forget(queued)

    def dispatch(self, now: float) -> float | None:
        if not self._queued:
            return None
        self._measure(now)
        self._expire(now)
        for _ in range(_MOST_IN_A_TURN):
            band = self._highest_waiting()
            if band is None:
                return None
            if self._load.saturation >= band.ceiling:
                return self._ask_again_at(band, now)
            self._dispatch_from(band, now)
            if self._per_request or not self._load.counts:
                self._measure(now)
        return now if self._queued else None

    def _ask_again_at(self, blocked: Band, now: float) -> float | None:
        """When something may change for the band though nothing happens; where it is enabled, make room for it."""
        due = min(self._expires_at(), self._load.changes_at(now))
        if self._per_request and self._load.saturation < 1.0:
            due = min(due, now + _ASK_AGAIN)
        if self._settings.eviction and not self._empty and blocked.ceiling > 0.0:
            saturation = self._load.saturation
            in_flight = float(self._pool(now).inflight.sum())
            share = saturation / in_flight if in_flight else 0.0
            over = saturation - blocked.ceiling
            due = min(due, self.eviction.reclaim(blocked.priority, over, share, now))
        return due if due < math.inf else None

    def endpoints_changed(self) -> None:
        """Endpoints were added, removed or changed."""
        self._load.forget()

    def close(self, now: float) -> float | None:
        """Flow control is switched off: what waits goes, in its order, so many in each turn as otherwise."""
        for _ in range(_MOST_IN_A_TURN):
            band = self._highest_waiting()
            if band is None:
                return None
            self._dispatch_from(band, now)
        return now if self._queued else None

    def _use(self, settings: FlowControlSettings, detector: SaturationDetector) -> None:
        self._settings = settings
        self._per_request = settings.usage_limit.per_request
        self._detector = detector
        self._load = PoolLoad(detector, self._pool)
        self.eviction.use(detector)
        self._bytes = 0
        self._bands: list[Band] = []
        self._by_priority: dict[int, Band] = {}
        self._idle_from = _NEVER
        for priority in {0, *settings.bands}:
            self._band(priority, 0.0)

    def _band(self, priority: int, now: float) -> Band:
        """The band of that priority, made if it does not exist."""
        band = self._by_priority.get(priority)
        if band is None:
            band = self._new_band(priority, now)
            self._by_priority[priority] = band
            self._bands.append(band)
            self._bands.sort(key=_by_priority, reverse=True)
            self._set_ceilings()
        return band

    def _new_band(self, priority: int, now: float) -> Band:
        settings = self._settings
        given = settings.bands.get(priority)
        default = settings.default_band
        if priority < 0 and settings.default_negative_band is not None:
            default = settings.default_negative_band
        return Band(priority, given or default, on_demand=given is None and priority != 0, now=now)

    def _waits_at_or_above(self, priority: int) -> bool:
        for band in self._bands:
            if band.priority < priority:
                return False
            if band.waiting:
                return True
        return False

    def _highest_waiting(self) -> Band | None:
        for band in self._bands:
            if band.waiting:
                return band
        return None

    def _dispatch_from(self, band: Band, now: float) -> None:
        queued = band.take()
        self._bytes -= queued.size
        del self._queued[queued.waiting]
        if queued.waiting.dispatch(now):
            self._load.sent()

    def _forget(self, queued: QueuedRequest) -> None:
        del self._queued[queued.waiting]
        queued.request.prompt = None  # a heap may know it for longer, and it refers to the whole body
        self._bytes -= queued.size
        self._by_priority[queued.request.priority].remove(queued)

    def _measure(self, now: float) -> None:
        self._load.measure(now)
        self._see_empty(self._load.empty, now)
        if now >= self._idle_from:
            self._collect_idle(now)
        self._set_ceilings()

    def _see_empty(self, empty: bool, now: float) -> None:
        if empty is not self._empty:
            self._empty, self._empty_changed_at = empty, now

    def _set_ceilings(self) -> None:
        """A lower priority never has a higher ceiling: it could not be reached."""
        priorities = [band.priority for band in self._bands]
        given = self._settings.usage_limit.ceilings(self._load.saturation, priorities)
        lowest = math.inf
        for band, ceiling in zip(self._bands, given, strict=True):
            lowest = min(lowest, ceiling)
            band.ceiling = lowest

    def _ceiling_of(self, priority: int, saturation: float) -> float:
        """As `_set_ceilings` would set it, for a priority that may have no band yet."""
        priorities = sorted({priority, *self._by_priority}, reverse=True)
        given = self._settings.usage_limit.ceilings(saturation, priorities)
        return min(given[: priorities.index(priority) + 1])

    def _collect_idle(self, now: float) -> None:
        """Forget bands that were made on demand, once nobody used them for long."""
        idle = self._settings.idle_band
        self._idle_from = now + idle / 2
        for band in [one for one in self._bands if one.on_demand and not one.waiting]:
            if now - band.used_at >= idle:
                self._bands.remove(band)
                del self._by_priority[band.priority]

    def _expire(self, now: float) -> None:
        ttl = self._ttl()
        if not ttl:
            return
        had = ttl if self._empty_changed_at <= now - ttl else self._settings.longest_wait
        for band in self._bands:
            while (oldest := band.oldest()) is not None and oldest.arrived_at <= now - had:
                self._forget(oldest)
                oldest.waiting.expire(refusals.expired(had, empty=self._empty), now)

    def _expires_at(self) -> float:
        """When the next request expires, if nothing changes until then; inf: never."""
        ttl = self._ttl()
        came_first = math.inf
        for band in self._bands:
            oldest = band.oldest()
            if oldest is not None:
                came_first = min(came_first, oldest.arrived_at)
        if not ttl:
            return math.inf
        return min(max(came_first, self._empty_changed_at) + ttl, came_first + self._settings.longest_wait)

    def _ttl(self) -> float:
        return self._settings.no_endpoint_ttl if self._empty else self._settings.request_ttl

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        band = self._by_priority.get(request.priority) or self._new_band(request.priority, now)
        if self._gives_way(band, request) is None and not self._may_evict(band, bytes_held(request)):
            raise refusals.queue_full(request.priority, empty=not len(self._pool(now)))

    def _make_room(self, band: Band, request: InferenceRequest, now: float) -> None:
        """Raise `Rejection` if it cannot wait in the band."""
        leave = self._gives_way(band, request)
        if leave is None:
            if self._evict(band, bytes_held(request), now):
                return
            raise refusals.queue_full(band.priority, empty=self._empty)
        for other in leave:
            self._forget(other)
            other.waiting.refuse(refusals.gave_way(band.priority), now)

    def _gives_way(self, band: Band, request: InferenceRequest) -> list[QueuedRequest] | None:
        """Who must leave the band for the request to wait in it; None: that makes no room, or a lower band has to."""
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
            0 if most is None else len(self._queued) + 1 - most,
            0 if most_bytes is None else self._bytes + size - most_bytes,
        )

    def _fits(self, size: int, *, without: int = 0, without_bytes: int = 0) -> bool:
        requests, in_bytes = self._over(size)
        return requests <= without and in_bytes <= without_bytes

    def _sheddable(self) -> list[Band]:
        return [band for band in reversed(self._bands) if band.priority < 0 and band.waiting]

    def _may_evict(self, band: Band, size: int) -> bool:
        """Whether its band has room, and all bands would have some without those that may be evicted."""
        if not self._settings.eviction or band.priority < 0 or max(band.over(size)) > 0:
            return False
        sheddable = self._sheddable()
        count, held = sum(len(one.waiting) for one in sheddable), sum(one.bytes for one in sheddable)
        return self._fits(size, without=count, without_bytes=held)

    def _evict(self, for_band: Band, size: int, now: float) -> bool:
        """Refuse requests below 0 that wait, lowest priority and latest arrival first, until there is room."""
        if not self._may_evict(for_band, size):
            return False
        for band in self._sheddable():
            while not self._fits(size) and (newest := band.newest()) is not None:
                self._forget(newest)
                newest.waiting.refuse(refusals.evicted(band.priority), now)
        return True


def _by_priority(band: Band) -> int:
    return band.priority


def _by_arrival(queued: QueuedRequest) -> int:
    return queued.sequence
