"""How full the pool is: 1.0 is full."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from epp.endpoint import EndpointPool, Mask
from epp.request import InferenceRequest


class SaturationDetector(Protocol):
    """Whoever can say how full a pool is."""

    def saturation(self, pool: EndpointPool) -> float:
        """0 is idle, 1 and more is full; a pool without endpoints is full."""


_MOST: Final = 3.0
"""What one endpoint can weigh in the mean: the page of one must not make a pool of a hundred idle ones full."""


@dataclass(frozen=True, slots=True)
class UtilizationDetector:
    """The mean over the endpoints of the larger of queue and KV cache use, each as a share of its threshold.

    An endpoint whose numbers are older than `staleness` seconds (`EndpointPool.fresh`) counts as full, and none as more
    than three full ones, whatever its page says. Values as in the Go picker's utilization-detector otherwise. Also a Filter: `headroom` is the share above the thresholds up to which an endpoint stays.
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
        loads = np.minimum(loads, _MOST)
        return float(np.where(pool.fresh(self.staleness), loads, 1.0).mean())

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """Endpoints below the limits whose numbers are fresh; all of them when there is none such."""
        room = 1.0 + self.headroom
        queue = pool.waiting < self.queue_depth * room
        fit: Mask = queue & (pool.kv_usage < self.kv_cache_utilization * room) & pool.fresh(self.staleness)
        return fit if fit.any() else np.ones(len(pool), dtype=np.bool_)
