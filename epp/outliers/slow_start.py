"""Gives endpoints that are new, or were ejected, their requests little by little. Pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Endpoint, EndpointPool, Mask
from epp.outliers.settings import Pause, Percent
from epp.plugins.section import Section

_MASKS: Final = 10
"""Different selections of one pool. Fewer than a pool remembers (`epp.endpoints.endpoint`): what plugins know of one that it
has forgotten is found out anew, which takes milliseconds if there are 1,000 endpoints."""
_DRAWS: Final = 10
"""How often within the window they are drawn anew."""


class SlowStartSettings(Section):
    """The names are those of https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/slow_start."""

    window: Pause = 30.0
    """A new worker gets fewer requests for this long."""
    aggression: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 1.0
    """1: its share grows evenly; above 1: faster at first."""
    min_weight_percent: Percent = 10.0
    """Its share at first, in percent."""

    def share(self, age: float) -> float:
        """The share of requests for which an endpoint of that age, in seconds, is considered."""
        grown: float = max(age / self.window, 0.0) ** (1.0 / self.aggression)
        return min(max(grown, self.min_weight_percent / 100.0), 1.0)


@dataclass(slots=True)
class _NewEndpoints:
    """The new endpoints of one pool. `since`: in the order of `rows`; `masks`: the endpoints that a pick may consider."""

    rows: list[int]
    since: dict[tuple[str, str], float]
    masks: list[Mask] = field(default_factory=list)
    drawn_until: float = float("-inf")


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
        self._new: object = object()
        """Another object whenever other endpoints are new."""
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
            self._new = object()

    def thin(self, pool: EndpointPool) -> EndpointPool:
        """The pool without some of its new endpoints, by chance; all of it if no other would be left, or all are new."""
        new = pool.note(self._new, lambda: self._new_of(pool))
        if not new.since or len(new.since) == len(pool):
            return pool
        if pool.now >= new.drawn_until:
            self._draw(new, pool)
        return pool.select(new.masks[int(self._rng.random() * _MASKS)])

    def _new_of(self, pool: EndpointPool) -> _NewEndpoints:
        keys = [endpoint.key for endpoint in pool.endpoints]
        rows = [row for row, key in enumerate(keys) if key in self._began]
        return _NewEndpoints(rows, {keys[row]: self._began[keys[row]] for row in rows})

    def _draw(self, new: _NewEndpoints, pool: EndpointPool) -> None:
        """Put each endpoint into its share of the masks; chance decides into which, and rounds the share."""
        masks = np.ones((_MASKS, len(pool)), dtype=np.bool_)
        for row, (key, since) in zip(new.rows, new.since.items(), strict=True):
            into = int(self._share(key, pool.now - since) * _MASKS + self._rng.random())
            begin = int(self._rng.random() * _MASKS)
            masks[(begin + np.arange(into, _MASKS)) % _MASKS, row] = False
        new.masks = list(masks)
        new.drawn_until = pool.now + self.settings.window / _DRAWS

    def _share(self, key: tuple[str, str], age: float) -> float:
        if age >= self.settings.window:
            self._began.pop(key, None)  # another pool may have seen it before
            self._new = object()
        return self.settings.share(age)

    def _changed(self) -> None:
        """Endpoints were added, removed or changed."""
        keys = {endpoint.key for endpoint in self._datastore.endpoints}
        now = self._clock()
        self._new = object()
        for key in keys - self._known:
            self._began[key] = now
        for key in self._began.keys() - keys:
            del self._began[key]
        self._known = keys
