"""Gives endpoints that are new, or were ejected, their requests little by little. Pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStartSettings:
    """`window`: seconds in which the share grows from `min_weight_percent` to all; straight with an aggression of 1.

    https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/slow_start
    """

    window: float = 30.0
    aggression: float = 1.0
    min_weight_percent: float = 10.0

    def share(self, age: float) -> float:
        """The share of requests for which an endpoint of that age, in seconds, is considered."""
        grown: float = max(age / self.window, 0.0) ** (1.0 / self.aggression)
        return min(max(grown, self.min_weight_percent / 100.0), 1.0)


class SlowStart:
    """Leaves endpoints out of some picks while they are new. A pool in which all are new is left as it is.

    An endpoint is new when it was added, or answered after it was ejected, or (`begin`) its process was replaced.
    """

    def __init__(
        self,
        datastore: Datastore,
        settings: SlowStartSettings,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.settings = settings
        self._datastore = datastore
        self._clock = clock
        self._rng = rng
        self._known = {endpoint.key for endpoint in datastore.endpoints}
        self._began: dict[tuple[str, str], float] = {}
        self._hooks: tuple[Callable[[], None], Callable[[Endpoint], None]] = (self._changed, self.begin)
        datastore.on_change.append(self._hooks[0])
        datastore.on_reset.append(self._hooks[1])

    def close(self) -> None:
        """Follow the datastore no more."""
        self._datastore.on_change.remove(self._hooks[0])
        self._datastore.on_reset.remove(self._hooks[1])
        self._began.clear()

    @property
    def warming(self) -> bool:
        """Whether any endpoint is new."""
        return bool(self._began)

    def begin(self, endpoint: Endpoint) -> None:
        """It is new from now on."""
        if endpoint.key in self._known:
            self._began[endpoint.key] = self._clock()

    def thin(self, pool: EndpointPool) -> EndpointPool:
        """The pool without some of its new endpoints, by chance; all of it if no other would be left, or all are new."""
        began = [self._began.get(endpoint.key) for endpoint in pool.endpoints]
        mask = np.ones(len(began), dtype=np.bool_)
        for row, since in enumerate(began):
            if since is not None:
                mask[row] = self._rng.random() < self._share(pool.endpoints[row], pool.now - since)
        return pool.select(mask) if None in began else pool

    def _share(self, endpoint: Endpoint, age: float) -> float:
        if age >= self.settings.window:
            del self._began[endpoint.key]
        return self.settings.share(age)

    def _changed(self) -> None:
        """Endpoints were added, removed or changed."""
        keys = {endpoint.key for endpoint in self._datastore.endpoints}
        now = self._clock()
        for key in keys - self._known:
            self._began[key] = now
        for key in self._began.keys() - keys:
            del self._began[key]
        self._known = keys
