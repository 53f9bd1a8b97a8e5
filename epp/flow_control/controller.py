"""Lets requests wait in the picker while the pool is full or empty, and chooses which goes next. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool
from epp.flow_control import refusals
from epp.flow_control.bands import Band, Bands
from epp.flow_control.eviction import InFlightEviction
from epp.flow_control.flow_queue import QueuedRequest
from epp.flow_control.pool_load import EFFECTIVE, PoolLoad
from epp.flow_control.settings import FlowControlSettings
from epp.request.inference_request import InferenceRequest
from epp.scheduling.director import Director
from epp.scheduling.saturation import SaturationDetector
from epp.scheduling.waiting import WaitingRequest

_MOST_IN_A_TURN: Final = 128
"""Requests dispatched in one turn; between two turns others are served."""
_YIELD: Final = 0.05
"""Seconds for which room beyond the own share is left to other pickers: until one has heard of it, and its pick is heard of here."""
_ASK_AGAIN: Final = 0.01
"""Seconds after which a usage limit that changes from call to call is asked again."""


class FlowController:
    """An `AdmissionController`: priorities strictly one after the other, flows and requests as the policies say.

    A request goes at once if nothing of its priority or a higher one waits and the saturation of the pool is below the
    ceiling of its priority. `pool`: all endpoints. `foresee`: the seconds to the first byte of a request that comes to wait, where
    it goes soonest; negative: not known.
    """

    waits_for_endpoints = True

    def __init__(
        self,
        settings: FlowControlSettings,
        detector: SaturationDetector,
        pool: Callable[[float], EndpointPool],
        foresee: Callable[[WaitingRequest, float], float] | None = None,
    ) -> None:
        self._pool = pool
        self._foresee = foresee
        self._arrived = 0
        self._empty = False
        self._empty_changed_at = -math.inf
        self.eviction = InFlightEviction(detector)
        """Takes requests back from their workers, where the settings say so."""
        self._waiting_at_peers: Sequence[Mapping[int, int]] = ()
        self._yields_since: float | None = None
        self._use(settings, detector)

    @property
    def bands(self) -> Sequence[Band]:
        """All that exist, highest priority first."""
        return self._bands.all

    @property
    def waiting(self) -> dict[int, int]:
        """How many requests wait at each priority that has any."""
        return {band.priority: len(band.waiting) for band in self._bands.all if band.waiting}

    def set_waiting_at_peers(self, waiting: Sequence[Mapping[int, int]]) -> None:
        """How many requests wait at each other picker that has any, by their priorities."""
        self._waiting_at_peers = waiting

    def waiting_at_peers(self, priority: int) -> int:
        """Requests of that priority which wait at other pickers."""
        return sum(one.get(priority, 0) for one in self._waiting_at_peers)

    @property
    def saturation(self) -> float:
        """As it decides about dispatch; as of the last time that it was needed."""
        return self._load.saturation

    def saturations(self, now: float) -> dict[str, float]:
        """The same as of now, for who only looks: of each stage, and "effective", which decides."""
        return PoolLoad(self.detector, self._pool).by_stage(now)

    def reconfigure(self, settings: FlowControlSettings, detector: SaturationDetector, now: float) -> None:
        """Use these from now on. A request that waits keeps its place in the order of arrival, whatever the new limits are."""
        waiting = sorted(self._bands.queued.values(), key=_by_arrival)
        self._use(settings, detector)
        for queued in waiting:
            queued.ttl = settings.request_ttl
            self._bands.add(queued, now)

    def admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        band = self._bands.of(request.priority, now)
        band.used_at = now
        if self._bands.waits_at_or_above(request.priority):
            return False
        load = self._load
        if self._per_request or load.saturation >= band.ceiling or not load.serves(candidates.state, now):
            self._measure(now)
            if load.saturation >= band.ceiling:
                return False
        if self._waiting_at_peers and self._yields(band, now):
            return False
        load.sent()
        return True

    def would_admit(self, request: InferenceRequest, candidates: EndpointPool, now: float) -> bool:
        priority, bands = request.priority, self._bands
        saturation = self.saturations(now)[EFFECTIVE]
        if not bands.waits_at_or_above(priority) and saturation < bands.ceiling_of(priority, saturation):
            return True
        self.would_enqueue(request, now)
        return False

    def would_enqueue(self, request: InferenceRequest, now: float) -> None:
        if not self._bands.has_room(request, now):
            raise refusals.queue_full(request.priority, empty=not len(self._pool(now)))

    def enqueue(self, waiting: WaitingRequest, now: float) -> None:
        request = waiting.request
        band = self._bands.of(request.priority, now)
        band.used_at = now
        self._see_empty(not len(self._pool(now)), now)
        leave = self._bands.make_room(band, request)
        if leave is None:
            raise refusals.queue_full(band.priority, empty=self._empty)
        for other, why in leave:
            other.waiting.refuse(why, now)
        self._arrived += 1
        queued = QueuedRequest(request, now, self.settings.request_ttl, self._arrived)
        queued.waiting = waiting
        if self._foresee is not None and getattr(band.settings.ordering, "foresees", False):
            queued.expected = self._foresee(waiting, now)
        self._bands.add(queued, now)

    def withdraw(self, waiting: WaitingRequest, now: float) -> None:
        queued = self._bands.queued.get(waiting)
        if queued is not None:
            self._bands.forget(queued)

    def dispatch(self, now: float) -> float | None:
        if not self._bands.queued:
            return None
        self._measure(now)
        self._expire(now)
        for _ in range(_MOST_IN_A_TURN):
            band = self._bands.highest_waiting()
            if band is None:
                return None
            if self._load.saturation >= band.ceiling:
                self._yields_since = None
                return self._ask_again_at(band, now)
            if self._waiting_at_peers and self._yields(band, now):
                return min(now + _ASK_AGAIN, self._expires_at())
            self._dispatch_from(band, now)
            if self._per_request or not self._load.counts:
                self._measure(now)
        return now if self._bands.queued else None

    def _ask_again_at(self, blocked: Band, now: float) -> float | None:
        """When something may change for the band though nothing happens; where it is enabled, make room for it."""
        due = min(self._expires_at(), self._load.changes_at(now))
        if self._per_request and self._load.saturation < 1.0:
            due = min(due, now + _ASK_AGAIN)
        if self.settings.eviction and not self._empty and blocked.ceiling > 0.0:
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
            band = self._bands.highest_waiting()
            if band is None:
                return None
            self._dispatch_from(band, now)
        return now if self._bands.queued else None

    def _use(self, settings: FlowControlSettings, detector: SaturationDetector) -> None:
        self.settings = settings
        self._per_request = settings.usage_limit.per_request
        self.detector = detector
        self._load = PoolLoad(detector, self._pool)
        self.eviction.use(detector)
        self._bands = Bands(settings, self._load)

    def _yields(self, band: Band, now: float) -> bool:
        """Whether what room there is belongs to requests that wait at other pickers, and they may still take it.

        The room for requests, as `concurrency-detector` has it, is shared by what runs and waits at each picker; who has the
        request that ends would keep its place for ever otherwise. No picker gets less than an equal share, whatever others tell.
        """
        room, priority = self._load.room, band.priority
        others = [sum(n for at, n in one.items() if at >= priority) for one in self._waiting_at_peers]
        there = [n for n in others if n]
        if room is None or not there:
            return False
        pool = self._pool(now)
        of_peers = float(pool.peer_inflight.sum())
        own = float(pool.inflight.sum()) - of_peers
        wanted = own + 1.0 + sum(len(one.waiting) for one in self._bands.all if one.priority >= priority)
        share = max(wanted / (wanted + of_peers + sum(there)), 1.0 / (len(there) + 1))
        if own < room * band.ceiling * share:
            self._yields_since = None
            return False
        if self._yields_since is None:
            self._yields_since = now
        return now - self._yields_since < _YIELD

    def _dispatch_from(self, band: Band, now: float) -> None:
        if self._bands.take(band).waiting.dispatch(now):
            self._load.sent()

    def _measure(self, now: float) -> None:
        self._load.measure(now)
        self._see_empty(self._load.empty, now)
        self._bands.collect_idle(now)
        self._bands.set_ceilings()

    def _see_empty(self, empty: bool, now: float) -> None:
        if empty is not self._empty:
            self._empty, self._empty_changed_at = empty, now

    def _expire(self, now: float) -> None:
        ttl = self._ttl()
        if not ttl:
            return
        had = ttl if self._empty_changed_at <= now - ttl else self.settings.longest_wait
        for band in self._bands.all:
            while (oldest := band.oldest()) is not None and oldest.arrived_at <= now - had:
                self._bands.forget(oldest)
                oldest.waiting.expire(refusals.expired(had, empty=self._empty), now)

    def _expires_at(self) -> float:
        """When the next request expires, if nothing changes until then; inf: never."""
        ttl = self._ttl()
        came_first = math.inf
        for band in self._bands.all:
            oldest = band.oldest()
            if oldest is not None:
                came_first = min(came_first, oldest.arrived_at)
        if not ttl:
            return math.inf
        return min(max(came_first, self._empty_changed_at) + ttl, came_first + self.settings.longest_wait)

    def _ttl(self) -> float:
        return self.settings.no_endpoint_ttl if self._empty else self.settings.request_ttl


def _by_arrival(queued: QueuedRequest) -> int:
    return queued.sequence


class FlowControlSwitch:
    """`memory`: bytes that all request bodies of the picker may hold together; those that wait get a part of it."""

    def __init__(self, director: Director, datastore: Datastore, memory: int) -> None:
        self._director = director
        self._datastore = datastore
        self._memory = memory
        self.controller: FlowController | None = None
        """None: it is off."""

    def use(self, settings: FlowControlSettings | None, detector: SaturationDetector, now: float) -> None:
        """Use these settings from now on, None: no flow control, and what waits goes. The queue stays otherwise."""
        if settings is None:
            self._end()
        elif self.controller is None:
            foresee = self._director.foresee
            self._begin(FlowController(self._bounded(settings), detector, self._datastore.pool, foresee))
        else:
            self.controller.reconfigure(self._bounded(settings), detector, now)
            self._director.waiting.wake()
        evicts = self.controller is not None and self.controller.settings.eviction
        self._director.picks.evictable = self.controller.eviction if evicts and self.controller else None
        self._director.use_admission(self.controller)

    def _begin(self, controller: FlowController) -> None:
        self.controller = controller
        self._hook: Callable[[], None] = controller.endpoints_changed
        self._datastore.on_change.append(self._hook)

    def _end(self) -> None:
        if self.controller is not None:
            self._datastore.on_change.remove(self._hook)
            self.controller = None

    def _bounded(self, settings: FlowControlSettings) -> FlowControlSettings:
        """Bodies that wait leave a quarter of the memory to those that still arrive, or nothing could be read any more."""
        most = self._memory - self._memory // 4
        return replace(settings, max_bytes=min(settings.max_bytes or most, most))
