"""Which endpoints may serve a request, and how it is refused if there is none. Pure."""

from typing import Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.outliers.slow_start import SlowStart
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.request.subset import Subset
from epp.scheduling.decision import Decision, rows_of_all

NO_ENDPOINTS: Final = "rejected-no-endpoints"
_MOST_KEPT: Final = 2048
"""Destinations of a subset whose mask is kept: the data plane may name many."""


def narrowed(
    pool: EndpointPool, serving: Mask | None, subset: Subset | None, decision: Decision | None
) -> EndpointPool:
    mask = np.ones(len(pool), dtype=np.bool_) if serving is None else serving
    if subset is not None:
        few = len(subset.members) <= _MOST_KEPT
        mask = mask & (pool.note(subset, lambda: _allowed(pool, subset)) if few else _allowed(pool, subset))
    if decision is not None:
        if serving is not None:
            decision.narrowed("model", np.flatnonzero(serving))
        if subset is not None:
            decision.narrowed("subset", np.flatnonzero(mask))
    if not mask.any():
        raise no_endpoints("no endpoint of the requested subset is ready for this request")
    return pool.select(mask)


def _allowed(pool: EndpointPool, subset: Subset) -> Mask:
    return np.array([subset.allows(one.address, one.port) for one in pool.endpoints], dtype=np.bool_)


def without_unreachable(pool: EndpointPool, decision: Decision | None) -> EndpointPool:
    reachable = pool.reachable
    if not reachable.any():
        return pool
    pool = pool.select(reachable)
    if decision is not None:
        decision.narrowed("unreachable", rows_of_all(pool))
    return pool


def without_slow_starters(
    slow_start: SlowStart, pool: EndpointPool, decision: Decision | None
) -> EndpointPool:
    pool = slow_start.thin(pool)
    if decision is not None:
        decision.narrowed("slow start", rows_of_all(pool))
    return pool


def model_not_found(request: InferenceRequest) -> Rejection:
    """In the client's words: the model that it named, not what a rule made of it."""
    named = request.model if request.rewritten_from is None else request.rewritten_from
    return Rejection(404, "model_not_found", f"the model {named[:200]!r} does not exist here")


def no_endpoints(message: str) -> Rejection:
    return Rejection(503, "no_endpoints", message, reason=NO_ENDPOINTS)
