"""What is left of a pool when some endpoints are not wanted, remembered from one pick to the next. Pure.

Plugins keep what they know of endpoints in the order of a tuple of them. If one worker of a thousand is away, each pick would
make another tuple of the others, and all of that anew: 1.5 ms in place of 0.15 (benchmarks/README.md: picking).
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

EndpointT = TypeVar("EndpointT")
T = TypeVar("T")

_REMEMBERED: Final = 16
"""Selections of one pool: stale, unreachable or ejected endpoints left out, and the subsets of the requests of the moment."""

_NOTES: Final = 64
"""What plugins know of the same endpoints: a request may name another subset, or another adapter."""


class SelectedEndpoints(Generic[EndpointT]):
    """`kept`: the rows of `endpoints` in the pool. `within`: selections of this one."""

    __slots__ = ("_adapters", "_adapters_of", "_state", "_state_of", "endpoints", "kept", "within")

    def __init__(self, endpoints: tuple[EndpointT, ...], kept: NDArray[np.intp]) -> None:
        self.endpoints = endpoints
        self.kept = kept
        self.within: Selections[EndpointT] = Selections(endpoints)
        self._adapters: tuple[Any, ...] = ()
        self._adapters_of: tuple[Any, ...] | None = None
        self._state: object | None = None
        self._state_of: object | None = None

    def adapters(self, of: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of its endpoints, of those of all endpoints of the pool."""
        if self._adapters_of is not of:
            self._adapters_of, self._adapters = of, tuple([of[row] for row in self.kept.tolist()])
        return self._adapters

    def state(self, of: object | None) -> object | None:
        """One object as long as the state of the pool is one object."""
        if of is None:
            return None
        if self._state_of is not of:
            self._state_of, self._state = of, object()
        return self._state


class Selections(Generic[EndpointT]):
    """The latest selections of some endpoints, and what was lately found out about them."""

    __slots__ = ("_by_mask", "_notes", "of")

    def __init__(self, of: tuple[EndpointT, ...]) -> None:
        self.of = of
        self._by_mask: OrderedDict[bytes, SelectedEndpoints[EndpointT]] = OrderedDict()
        self._notes: OrderedDict[Hashable, Any] = OrderedDict()

    def note(self, about: Hashable, made: Callable[[], T]) -> T:
        """What `made` returned when it was last asked about this; it depends on the endpoints and `about` only."""
        if about in self._notes:
            self._notes.move_to_end(about)
        else:
            self._notes[about] = made()
            if len(self._notes) > _NOTES:
                self._notes.popitem(last=False)
        found: T = self._notes[about]
        return found

    def get(self, mask: NDArray[np.bool_]) -> SelectedEndpoints[EndpointT]:
        """The endpoints in `mask`: the same object as for an equal mask lately."""
        key = mask.tobytes()
        found = self._by_mask.get(key)
        if found is not None:
            self._by_mask.move_to_end(key)
            return found
        kept = np.flatnonzero(mask)
        made = self._by_mask[key] = SelectedEndpoints(tuple([self.of[row] for row in kept.tolist()]), kept)
        if len(self._by_mask) > _REMEMBERED:
            self._by_mask.popitem(last=False)
        return made
