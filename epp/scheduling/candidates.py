"""Which endpoints may serve a request, and how it is refused if there is none. Pure."""

from typing import Final

import numpy as np

from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import EndpointPool, Mask
from epp.outliers.slow_start import SlowStart
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.decision import Decision, rows_of_all
from epp.scheduling.pick import SchedulingContext
from epp.scheduling.request_reader import RequestReader, model_not_found

NO_ENDPOINTS: Final = "rejected-no-endpoints"
_MOST_KEPT: Final = 2048
"""Destinations of a subset whose mask is kept: the data plane may name many."""


class Candidates:
    """Finds the endpoints that may serve a request. `slow_start`: leaves new endpoints out of some picks, if there is one."""

    def __init__(self, datastore: Datastore, reader: RequestReader) -> None:
        self._datastore = datastore
        self._reader = reader
        self.slow_start: SlowStart | None = None

    def find(self, context: SchedulingContext, now: float) -> EndpointPool:
        """The endpoints that serve the model, are in the subset, and are reachable; if none is reachable, all of them.

        Unreachable is only a hint: a pick among unreachable endpoints may succeed, no pick cannot. Raises `Rejection`.
        """
        pool = self._datastore.pool(now)
        request, subset, decision = context.request, context.subset, context.decision
        if decision is not None:
            decision.found(pool)
        self._reader.check_model(request)
        if not len(pool):
            raise no_endpoints("no endpoint is ready")
        serving = self._datastore.serving(request.model) if request.model else None
        if serving is not None and not serving.any():
            raise model_not_found(request)
        if serving is not None or subset is not None:
            pool = _narrowed(pool, serving, subset, decision)
        if self._datastore.all_reachable:  # the common case, without a mask
            return pool
        return _without_unreachable(pool, decision)

    def for_pick(self, candidates: EndpointPool, decision: Decision | None) -> EndpointPool:
        """The candidates without the new endpoints that this pick leaves out."""
        if self.slow_start is None or not self.slow_start.warming:
            return candidates
        pool = self.slow_start.thin(candidates)
        if decision is not None:
            decision.narrowed("slow start", rows_of_all(pool))
        return pool


def _narrowed(
    pool: EndpointPool, serving: Mask | None, subset: Subset | None, decision: Decision | None
) -> EndpointPool:
    mask = np.ones(len(pool), dtype=np.bool_) if serving is None else serving
    if subset is not None:
        few = len(subset.members) <= _MOST_KEPT
        mask = mask & (pool.note(subset, lambda: _allowed(pool, subset)) if few else _allowed(pool, subset))
    if decision is not None:
        if serving is not None:
            decision.narrowed("model", serving)
        if subset is not None:
            decision.narrowed("subset", mask)
    if not mask.any():
        raise no_endpoints("no endpoint of the requested subset is ready for this request")
    return pool.select(mask)


def _allowed(pool: EndpointPool, subset: Subset) -> Mask:
    return np.array([subset.allows(one.address, one.port) for one in pool.endpoints], dtype=np.bool_)


def _without_unreachable(pool: EndpointPool, decision: Decision | None) -> EndpointPool:
    reachable = pool.reachable
    if not reachable.any():
        return pool
    pool = pool.select(reachable)
    if decision is not None:
        decision.narrowed("unreachable", rows_of_all(pool))
    return pool


def no_endpoints(message: str) -> Rejection:
    return Rejection(503, "no_endpoints", message, reason=NO_ENDPOINTS)
