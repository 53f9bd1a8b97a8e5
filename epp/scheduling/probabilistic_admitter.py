"""Refuses requests of negative priority, the more likely the fuller the candidates are.

Formula: llm-d-router, plugins/requestcontrol/admitter/probabilisticadmitter.
"""

import math
import random

import numpy as np

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.admission import SATURATED
from epp.scheduling.request_follower import RequestFollower

_RETRY_AFTER = 1.0


class ProbabilisticAdmitter(RequestFollower):
    """The probability is `saturation ** power * k`, at most 1.

    Saturation: the mean of the larger of queue and KV cache use, each as a share of its threshold. An endpoint whose page
    was not read, or is not believed, counts as full; of one without a page the requests in flight count as its queue.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        queue_depth: float = 5.0,
        kv_cache_utilization: float = 0.8,
        power: float = 5.0,
        k: float = 300.0,
    ) -> None:
        self._rng = rng
        self._queue_depth = queue_depth
        self._kv_cache_utilization = kv_cache_utilization
        self._power = power
        self._k = k

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Raises `Rejection` 429 for a request that is refused."""
        if request.priority < 0 and self._rng.random() < self.probability(pool):
            message = f"the endpoints are busy, and a request of priority {request.priority} has to wait"
            raise Rejection(429, "saturated", message, reason=SATURATED, retry_after=_RETRY_AFTER)

    def probability(self, pool: EndpointPool) -> float:
        """The probability that a request of negative priority is refused."""
        if not len(pool):
            return 0.0
        loads = np.maximum(pool.waiting / self._queue_depth, pool.kv_usage / self._kv_cache_utilization)
        loads = np.where(np.isfinite(pool.age), loads, 1.0)
        loads = np.where(pool.pageless, pool.inflight / self._queue_depth, loads)
        try:
            probability = math.pow(float(loads.mean()), self._power) * self._k
        except OverflowError:
            return 1.0
        return min(probability, 1.0)
