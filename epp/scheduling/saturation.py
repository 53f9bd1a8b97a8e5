"""How full the pool is: 1.0 is full."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.request.inference_request import InferenceRequest


class SaturationDetector(Protocol):
    """Whoever can say how full a pool is."""

    def saturation(self, pool: EndpointPool) -> float:
        """0 is idle, 1 and more is full; a pool without endpoints is full."""


_MAX_LOAD: Final = 3.0
"""What one endpoint can weigh in the mean: the page of one must not make a pool of a hundred idle ones full."""


@dataclass(frozen=True, slots=True)
class UtilizationDetector:
    """The mean over the endpoints of the larger of queue and KV cache use, each as a share of its threshold.

    An endpoint whose numbers are older than `staleness` seconds (`EndpointPool.fresh`) counts as full, one that has no
    metrics page as its requests in flight, as if they were its queue, and none as more than three full ones. Values
    as in the Go picker's utilization-detector otherwise. Also a Filter: `headroom` is the share above the thresholds up
    to which an endpoint stays.
    """

    queue_depth: float = 5.0
    kv_cache_utilization: float = 0.8
    staleness: float = 0.2
    headroom: float = 0.0

    def saturation(self, pool: EndpointPool) -> float:
        """The pool's load; 1.0 when there is no endpoint."""
        if not len(pool):
            return 1.0
        loads = np.maximum(pool.waiting / self.queue_depth, pool.kv_usage / self.kv_cache_utilization)
        loads = np.where(pool.fresh(self.staleness), loads, 1.0)
        loads = np.where(pool.pageless, pool.inflight / self.queue_depth, loads)
        return float(np.minimum(loads, _MAX_LOAD).mean())

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """Endpoints below the limits whose numbers are fresh; all of them when there is none such."""
        room = 1.0 + self.headroom
        known = (pool.waiting < self.queue_depth * room) & (pool.kv_usage < self.kv_cache_utilization * room)
        known &= pool.fresh(self.staleness)
        fit: Mask = np.where(pool.pageless, pool.inflight < self.queue_depth * room, known)
        return fit if fit.any() else np.ones(len(pool), dtype=np.bool_)
