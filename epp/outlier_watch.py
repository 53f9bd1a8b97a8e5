"""Detects outliers as the configuration in force says: its timer, and the probes of endpoints that were ejected."""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Never

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, Key
from epp.outliers.detection import TICK, OutlierDetection
from epp.outliers.outlier_record import Cause, OutlierRecord, OutlierState
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStart, SlowStartSettings
from epp.scheduling.director import Director
from epp.scraping.liveness import answers_probe


class OutlierWatch:
    """`tls`: asked for at each probe. Switched off, it costs nothing: the director knows of none."""

    def __init__(
        self, director: Director, datastore: Datastore, clock: Callable[[], float], rng: random.Random
    ) -> None:
        self.tls: Callable[[], ssl.SSLContext | None] = lambda: None
        self.detection: OutlierDetection | None = None
        self._director = director
        self._datastore = datastore
        self._clock = clock
        self._rng = rng
        self._slow_start: SlowStart | None = None
        self._changed = asyncio.Event()
        self._probed: set[tuple[str, str]] = set()
        self._ejections: Counter[Cause] = Counter()
        self._overflows = 0

    def use(self, outliers: OutlierSettings | None, slow_start: SlowStartSettings | None) -> None:
        """Use these settings from now on, None: neither. Endpoints keep what is known of them while it is on."""
        self._use_slow_start(slow_start)
        if self.detection is not None and outliers is None:
            self._ejections, self._overflows = self.ejections, self.overflows
            self.detection.close()
            self.detection = None
        elif self.detection is None and outliers is not None:
            self.detection = OutlierDetection(self._datastore, outliers)
        elif self.detection is not None and outliers is not None:
            self.detection.settings = outliers
        if self.detection is not None:
            self.detection.on_recovered = None if self._slow_start is None else self._slow_start.begin
        self._director.picks.outliers = self.detection
        self._director.eligible.slow_start = self._slow_start
        self._changed.set()

    def _use_slow_start(self, settings: SlowStartSettings | None) -> None:
        if settings is None:
            if self._slow_start is not None:
                self._slow_start.close()
            self._slow_start = None
        elif self._slow_start is None:
            self._slow_start = SlowStart(self._datastore, settings, self._clock, self._rng)
        else:
            self._slow_start.settings = settings

    @property
    def ejections(self) -> Counter[Cause]:
        """By cause, since the picker began."""
        return self._ejections + (Counter() if self.detection is None else self.detection.ejections)

    @property
    def overflows(self) -> int:
        return self._overflows + (0 if self.detection is None else self.detection.overflows)

    @property
    def avoided(self) -> list[OutlierRecord]:
        """The endpoints that get no requests, or only one on trial."""
        return [] if self.detection is None else list(self.detection.ejected)

    @property
    def ejected(self) -> tuple[Endpoint, ...]:
        """Avoided endpoints that get no request at all, for what this picker has seen itself."""
        states = OutlierState.EJECTED, OutlierState.PROBING
        return tuple([one.endpoint for one in self.avoided if one.state in states])

    def set_ejected_by_peers(self, ejected: Iterable[Key]) -> None:
        """Avoid what peers have ejected too, as far as `maxEjectionPercent` allows; nothing while it is off."""
        detection, store = self.detection, self._datastore
        if detection is None:
            store.set_ejected_by_peers(set())
            return
        left = detection.settings.ejectable(len(store.endpoints)) - len(detection.ejected)
        own = {one.endpoint.key for one in detection.ejected}
        others = sorted(key for key in set(ejected) - own if store.find(key) is not None)
        store.set_ejected_by_peers(set(others[: max(0, left)]))

    def describe(self) -> dict[str, Any]:
        """For /status: nothing while it is off."""
        if self.detection is None:
            return {}
        now = self._clock()
        return {
            "outliers": [
                {
                    "id": one.endpoint.id,
                    "destination": one.endpoint.destination,
                    "state": one.state.value,
                    "cause": None if one.cause is None else one.cause.value,
                    "seconds_left": max(0.0, round(one.until - now, 1)),
                    "ejections": one.ejections,
                }
                for one in self.detection.ejected
            ]
        }

    async def run(self) -> Never:
        """Tick and probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                if self.detection is None:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                await asyncio.sleep(TICK)
                if self.detection is not None:
                    self._tick(self.detection, group)

    def _tick(self, detection: OutlierDetection, group: asyncio.TaskGroup) -> None:
        detection.tick(self._clock())
        for endpoint in detection.to_probe:
            if endpoint.key not in self._probed:
                self._probed.add(endpoint.key)
                group.create_task(self._probe(detection, endpoint), name=f"probe {endpoint.destination}")

    async def _probe(self, detection: OutlierDetection, endpoint: Endpoint) -> None:
        settings = detection.settings
        try:
            alive = await answers_probe(endpoint, settings.probe_path, settings.probe_timeout, self.tls())
            detection.probed(endpoint, self._clock(), alive=alive)
        finally:
            self._probed.discard(endpoint.key)
