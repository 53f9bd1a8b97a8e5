"""Refuses requests of negative priority, the more likely the fuller the candidates are.

Formula: llm-d-router, plugins/requestcontrol/admitter/probabilisticadmitter.
"""

import math
import random
from typing import Final

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import EndpointPool
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
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


class ProbabilisticAdmitterParameters(Section):
    queue_depth_threshold: int = Field(default=5, ge=1)
    """The queue length that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, allow_inf_nan=False)
    """The share of the KV cache in use that counts as full."""
    power: float = Field(default=5.0, gt=0.0, allow_inf_nan=False)
    """The probability of a refusal is the saturation to this power, times `k`."""
    k: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)
    """See `power`."""


def _build(given: ProbabilisticAdmitterParameters, context: PluginContext) -> ProbabilisticAdmitter:
    admitter = ProbabilisticAdmitter(
        random.Random(context.rng.getrandbits(64)),
        queue_depth=given.queue_depth_threshold,
        kv_cache_utilization=given.kv_cache_util_threshold,
        power=given.power,
        k=given.k,
    )
    context.follow(admitter)
    return admitter


PROBABILISTIC_ADMITTER: Final = PluginDeclaration(
    type="probabilistic-admitter",
    role=Role.ADMITTER,
    parameters=ProbabilisticAdmitterParameters,
    build=_build,
)
