"""Measures the load of a pool; 1.0 is full."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.request.inference_request import InferenceRequest


class SaturationDetector(Protocol):
    """Measures the load of a pool."""

    def saturation(self, pool: EndpointPool) -> float:
        """0 is idle, 1 or more is full; a pool without endpoints is full."""


_MAX_LOAD: Final = 3.0
"""The most that one endpoint counts in the mean: one wrong page must not make a pool of idle endpoints full."""


@dataclass(frozen=True, slots=True)
class UtilizationDetector:
    """The mean over the endpoints of the larger of queue and KV cache use, each as a share of its threshold.

    An endpoint with numbers older than `staleness` seconds (`EndpointPool.fresh`) counts as full. For an endpoint without a
    metrics page its requests in flight count as its queue. None counts as more than three full ones. Otherwise the
    values are those of the Go picker's utilization-detector. Also a Filter: an endpoint stays while it is at most the
    share `headroom` above the thresholds.
    """

    queue_depth: float = 5.0
    kv_cache_utilization: float = 0.8
    staleness: float = 0.2
    headroom: float = 0.0

    def saturation(self, pool: EndpointPool) -> float:
        if not len(pool):
            return 1.0
        loads = np.maximum(pool.waiting / self.queue_depth, pool.kv_usage / self.kv_cache_utilization)
        loads = np.where(pool.fresh(self.staleness), loads, 1.0)
        loads = np.where(pool.pageless, pool.inflight / self.queue_depth, loads)
        return float(np.minimum(loads, _MAX_LOAD).mean())

    def stale(self, pool: EndpointPool) -> int:
        """How many endpoints count as full because their numbers are old or unknown."""
        return int((~pool.fresh(self.staleness) & ~pool.pageless).sum())

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """The endpoints with fresh numbers below the limits; all endpoints if there is none."""
        room = 1.0 + self.headroom
        known = (pool.waiting < self.queue_depth * room) & (pool.kv_usage < self.kv_cache_utilization * room)
        known &= pool.fresh(self.staleness)
        fit: Mask = np.where(pool.pageless, pool.inflight < self.queue_depth * room, known)
        return fit if fit.any() else np.ones(len(pool), dtype=np.bool_)
