"""One scheduling profile: filters, then the weighted sum of the scores, then the picker."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epp.endpoint import Endpoint, EndpointPool, Floats
from epp.protocol import Rejection
from epp.request import InferenceRequest
from epp.scheduling.plugin import Filter, Picker, Scorer

_TIE = 1e-9
"""What one request in flight costs: it decides between equal scores and between nothing else."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """A scorer and the weight of its scores in the sum."""

    scorer: Scorer
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerProfile:
    """How one request finds its endpoints: `max_endpoints` of them, the choice and its fallbacks.

    `staleness` in seconds: an endpoint whose numbers are older, or that has none, comes after all those that are
    known. None: the scorers do not read what is scraped, its age says nothing.
    """

    picker: Picker
    filters: Sequence[Filter] = ()
    scorers: Sequence[Weighted] = ()
    max_endpoints: int = 1
    staleness: float | None = None

    def run(self, request: InferenceRequest, pool: EndpointPool) -> tuple[Endpoint, ...]:
        """The choice first, then the fallbacks; `Rejection` when the filters leave nothing."""
        for one in self.filters:
            pool = pool.take(one.filter(request, pool))
            if not pool:
                message = "none of the endpoints is fit for this request: the filters leave nothing"
                raise Rejection(503, "no_endpoints", message, reason="rejected-no-endpoints")
        scores = self._scores(request, pool) - _TIE * pool.inflight
        return tuple(pool.endpoints[i] for i in self.picker.pick(scores, self.max_endpoints))

    def _scores(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        if self.staleness is None:
            return self._sum(request, pool)
        fresh = pool.fresh(self.staleness)
        if fresh.all():
            return self._sum(request, pool)
        scores: Floats = 1.0 / (1.0 + pool.inflight)
        if fresh.any():
            known = self._sum(request, pool.take(fresh))
            scores += min(known.min(), 0.0) - 2.0
            scores[fresh] = known
        return scores

    def _sum(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        total = np.zeros(len(pool))
        for weighted in self.scorers:
            # fmax and fmin leave the other operand where one is NaN
            score = np.fmin(np.fmax(weighted.scorer.score(request, pool), 0.0), 1.0)
            total += weighted.weight * score
        return total
