"""How full the pool is, with what was sent since it was measured. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from epp.endpoints.endpoint import ROLE_LABEL, UNKNOWN_TIME, Column, Endpoint, EndpointPool, Floats, Mask
from epp.scheduling.saturation import DispatchDetector, SaturationDetector

PREFILL: Final = "prefill"
DECODE: Final = "decode"


class Stages:
    """Remembers the roles of the endpoints that it saw last."""

    def __init__(self) -> None:
        self._endpoints: Sequence[Endpoint] = ()
        self._masks: Mapping[str, Mask] = {}

    def pools(self, pool: EndpointPool) -> Mapping[str, EndpointPool]:
        """The pool of each stage: each request needs room in all of them. One that is not apart decodes.

        As in the Go picker: what has no role decodes, what has both is in both, and what only encodes or has a role that
        nobody knows is in none.
        """
        if pool.endpoints is not self._endpoints:
            self._endpoints, self._masks = pool.endpoints, _masks(pool.endpoints)
        return {name: pool.select(mask) for name, mask in self._masks.items()} or {DECODE: pool}


def _masks(endpoints: Sequence[Endpoint]) -> Mapping[str, Mask]:
    if not any(endpoint.labels.get(ROLE_LABEL) for endpoint in endpoints):
        return {}
    prefill: Mask = np.array([endpoint.prefills for endpoint in endpoints])
    decode: Mask = np.array([endpoint.decodes for endpoint in endpoints])
    return {name: mask for name, mask in ((PREFILL, prefill), (DECODE, decode)) if mask.any()}


EFFECTIVE: Final = "effective"
_MEASURE_EVERY: Final = 0.02
"""Seconds for which a measurement serves though workers published new numbers: those come every 50 ms, and are older."""
_REACHABLE: Final = int(Column.REACHABLE)
_NEVER: Final = float("-inf")
_UNKNOWN_ROOM: Final = 1e-9
"""The room of a detector that counts otherwise: it is asked after each request."""


class PoolLoad:
    """The saturation that decides about dispatch.

    It differs from what `detector` says by what was sent (`DispatchDetector`). Endpoints that get no requests, since they are
    unreachable or late, do not count. Where prefill and decode are apart, the fuller of both decides.
    """

    def __init__(self, detector: SaturationDetector, pool: Callable[[float], EndpointPool]) -> None:
        self._detector = detector
        self._dispatching = detector if isinstance(detector, DispatchDetector) else None
        self._pool = pool
        self._measured_at = _NEVER
        self._stages = Stages()
        self._state: object | None = None
        self._measured = 1.0
        self._changes_at = self._changes_asked_at = _NEVER
        self._room = _UNKNOWN_ROOM
        self._sent = 0
        self.saturation = 1.0
        """As last measured, and more for each request that was sent since."""
        self.empty = False
        """Whether there was no endpoint when it was measured."""

    def serves(self, state: object | None, now: float) -> bool:
        """Whether the last measurement still serves; `state`: the pool's."""
        return (state is not None and state is self._state) or now - self._measured_at < _MEASURE_EVERY

    @property
    def counts(self) -> bool:
        """Whether `saturation` knows what was sent since it was measured; otherwise it is to be measured after each request."""
        return self._room != _UNKNOWN_ROOM

    @property
    def room(self) -> float | None:
        """How many requests fill the pool, of those that are in flight; None: the detector counts otherwise."""
        return self._room if self.counts and self._detector.counts_in_flight else None

    def sent(self) -> None:
        """One request more was sent."""
        self._sent += 1
        # a thousandth more than they are: seven tenths and three times a tenth must be no less than one
        self.saturation = self._measured + (self._sent + 0.001) / self._room

    def forget(self) -> None:
        """The pool has other endpoints now, so nothing that was measured holds."""
        self._state, self._measured_at = None, _NEVER
        self._changes_asked_at = _NEVER

    def measure(self, now: float) -> None:
        pool = self._pool(now)
        self._state, self._measured_at = pool.state, now
        self.empty = not len(pool)
        self._sent = 0
        self.saturation = self._measured = 1.0
        if not self.empty:
            stages = self._stages.pools(_used(pool)).values()
            self.saturation = self._measured = max(map(self._saturation, stages))
            self._room = min(map(self._requests_of, stages))

    def by_stage(self, now: float) -> dict[str, float]:
        """The saturation of each stage now, and of the one that decides: "effective"."""
        pool = self._pool(now)
        if not len(pool):
            return {EFFECTIVE: 1.0}
        found = {name: self._saturation(stage) for name, stage in self._stages.pools(_used(pool)).items()}
        return {**found, EFFECTIVE: max(found.values())}

    def changes_at(self, now: float) -> float:
        """When the saturation may change although nothing happens: numbers become stale, endpoints late; inf: never."""
        if self._changes_at > now and now - self._changes_asked_at < _MEASURE_EVERY:
            return self._changes_at
        self._changes_asked_at = now
        pool = self._pool(now)
        times = pool.numbers[Column.LATE_AT]
        detector = self._dispatching
        if detector is not None and (staleness := detector.staleness) is not None:
            times = np.minimum(times, _after(pool.stale_at(staleness), now))
        self._changes_at = float(_after(times, now).min(initial=UNKNOWN_TIME))
        return self._changes_at

    def _saturation(self, pool: EndpointPool) -> float:
        dispatching = self._dispatching
        measured = self._detector.saturation(pool) if dispatching is None else dispatching.with_sent(pool)
        return 1.0 if math.isnan(measured) else measured  # NaN is unknown, and unknown is full

    def _requests_of(self, pool: EndpointPool) -> float:
        """How many requests fill an idle pool, at the least."""
        room = None if self._dispatching is None else self._dispatching.room(len(pool))
        return _UNKNOWN_ROOM if room is None else room


def _used(pool: EndpointPool) -> EndpointPool:
    """The endpoints that get requests; all of them if none is reachable."""
    if np.count_nonzero(pool.numbers[_REACHABLE]) < len(pool):
        reachable = pool.reachable
        pool = pool.select(reachable) if reachable.any() else pool
    late = pool.late()
    return pool if late is None else pool.select(~late)


def _after(times: Floats, now: float) -> Floats:
    later: Floats = np.where(times > now, times, UNKNOWN_TIME)
    return later
