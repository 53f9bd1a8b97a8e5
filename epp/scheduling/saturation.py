"""Measures the load of a pool, 1.0 is full; and refuses requests of negative priority the more likely the fuller it is.

Formula of the refusal: llm-d-router, plugins/requestcontrol/admitter/probabilisticadmitter.
"""

import math
import random
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import Column, EndpointPool, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, only_parameters
from epp.plugins.section import Duration, Headroom, Limit, Section
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import RETRY_AFTER, Rejection
from epp.scheduling.plugin import RequestFollower

SATURATED: Final = "rejected-saturated"


class SaturationDetector(Protocol):
    """Measures the load of a pool."""

    @property
    def counts_in_flight(self) -> bool:
        """Whether it measures what this picker has in flight, so that the end of each answer matters to it."""

    def saturation(self, pool: EndpointPool) -> float:
        """0 is idle, 1 or more is full; a pool without endpoints is full."""


@runtime_checkable
class StalenessAware(Protocol):
    """A detector that does not trust old numbers."""

    def stale(self, pool: EndpointPool) -> int:
        """How many endpoints count as full because their numbers are old or unknown."""


@runtime_checkable
class DispatchDetector(SaturationDetector, Protocol):
    """A detector that knows what one request more does to the load: with others a queue measures after each that it sends."""

    @property
    def staleness(self) -> float | None:
        """Seconds after which it does not trust numbers; None: it reads none."""

    def with_sent(self, pool: EndpointPool) -> float:
        """The load of a pool that has endpoints, where requests that no page shows yet wait at their worker.

        Otherwise all requests of a queue would go between two pages. An endpoint whose numbers are stale counts by what is
        in flight there: a queue must not stop because pages do.
        """

    def room(self, endpoints: int) -> float | None:
        """How many requests fill so many idle endpoints, at the least; None: it does not count requests."""


_MAX_LOAD: Final = 3.0
"""The most that one endpoint counts in the mean: one wrong page must not make a pool of idle endpoints full."""
_UNREPORTED: Final = int(Column.UNREPORTED)


class UtilizationDetector(Section):
    """The load is the mean over the endpoints of the larger of queue and KV cache use, each as a share of its threshold.

    For an endpoint without a metrics page its requests in flight count as its queue. None counts as more than three full ones.
    As a filter it keeps all endpoints if none is below the thresholds.
    """

    queue_depth_threshold: Limit = 5
    """The queue length that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """The share of the KV cache in use that counts as full."""
    metrics_staleness_threshold: Duration = Field(default=0.2, gt=0.0)
    """With older numbers an endpoint counts as full, or with flow control by what is in flight."""
    headroom: Headroom = 0.0
    """As a filter: keeps endpoints up to this share above the thresholds."""

    counts_in_flight: ClassVar[bool] = False

    def saturation(self, pool: EndpointPool) -> float:
        if not len(pool):
            return 1.0
        loads = np.maximum(
            pool.waiting / self.queue_depth_threshold, pool.kv_usage / self.kv_cache_util_threshold
        )
        loads = np.where(pool.fresh(self.metrics_staleness_threshold), loads, 1.0)
        loads = np.where(pool.pageless, pool.inflight / self.queue_depth_threshold, loads)
        return float(np.minimum(loads, _MAX_LOAD).mean())

    def with_sent(self, pool: EndpointPool) -> float:
        inflight = pool.inflight
        # what was sent since the page may have ended since; and more are waiting if more are in flight than it showed
        queued = pool.waiting + np.minimum(pool.numbers[_UNREPORTED], inflight)
        queued = np.maximum(queued, inflight - pool.running)
        loads = np.fmax(queued / self.queue_depth_threshold, pool.kv_usage / self.kv_cache_util_threshold)
        known = pool.fresh(self.metrics_staleness_threshold)
        if np.count_nonzero(known) < len(pool):  # many times faster than `all`
            beyond = np.maximum(inflight - np.where(pool.pageless, 0.0, pool.running), 0.0)
            loads = np.where(known & ~pool.pageless, loads, beyond / self.queue_depth_threshold)
        return float(np.add.reduce(np.minimum(loads, _most_of_one(len(pool))))) / len(pool)

    @property
    def staleness(self) -> float:
        return self.metrics_staleness_threshold

    def room(self, endpoints: int) -> float | None:
        return self.queue_depth_threshold * endpoints

    def stale(self, pool: EndpointPool) -> int:
        return int((~pool.fresh(self.metrics_staleness_threshold) & ~pool.pageless).sum())

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """The endpoints with fresh numbers below the limits; all endpoints if there is none."""
        room = 1.0 + self.headroom
        known = (pool.waiting < self.queue_depth_threshold * room) & (
            pool.kv_usage < self.kv_cache_util_threshold * room
        )
        known &= pool.fresh(self.metrics_staleness_threshold)
        fit: Mask = np.where(pool.pageless, pool.inflight < self.queue_depth_threshold * room, known)
        return fit if fit.any() else np.ones(len(pool), dtype=np.bool_)


def _most_of_one(endpoints: int) -> float:
    """One endpoint takes at most half of the room of the others: a queue must not stop because of one wrong page."""
    return _MAX_LOAD if endpoints == 1 else min(_MAX_LOAD, 1.0 + (endpoints - 1) / 2.0)


UTILIZATION_DETECTOR: Final = only_parameters(
    "utilization-detector", Role.DETECTOR, UtilizationDetector, also=Role.FILTER
)


class ProbabilisticAdmitterParameters(Section):
    queue_depth_threshold: int = Field(default=5, ge=1)
    """The queue length that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, allow_inf_nan=False)
    """The share of the KV cache in use that counts as full."""
    power: float = Field(default=5.0, gt=0.0, allow_inf_nan=False)
    """The probability of a refusal is the saturation to this power, times `k`."""
    k: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)
    """See `power`."""


@dataclass(eq=False)
class ProbabilisticAdmitter(RequestFollower):
    """The probability is `saturation ** power * k`, at most 1.

    Saturation: the mean of the larger of queue and KV cache use, each as a share of its threshold. An endpoint whose page
    was not read, or is not believed, counts as full; of one without a page the requests in flight count as its queue.
    """

    given: ProbabilisticAdmitterParameters
    rng: random.Random

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Raises `Rejection` 429 for a request that is refused."""
        if request.priority < 0 and self.rng.random() < self.probability(pool):
            message = f"the endpoints are busy, and a request of priority {request.priority} has to wait"
            raise Rejection(429, "saturated", message, reason=SATURATED, retry_after=RETRY_AFTER)

    def probability(self, pool: EndpointPool) -> float:
        """The probability that a request of negative priority is refused."""
        if not len(pool):
            return 0.0
        depth = self.given.queue_depth_threshold
        loads = np.maximum(pool.waiting / depth, pool.kv_usage / self.given.kv_cache_util_threshold)
        loads = np.where(np.isfinite(pool.age), loads, 1.0)
        loads = np.where(pool.pageless, pool.inflight / depth, loads)
        try:
            probability = math.pow(float(loads.mean()), self.given.power) * self.given.k
        except OverflowError:
            return 1.0
        return min(probability, 1.0)


def _admitter(given: ProbabilisticAdmitterParameters, context: PluginContext) -> ProbabilisticAdmitter:
    admitter = ProbabilisticAdmitter(given, random.Random(context.rng.getrandbits(64)))
    context.follow(admitter)
    return admitter


PROBABILISTIC_ADMITTER: Final = PluginDeclaration(
    type="probabilistic-admitter",
    role=Role.ADMITTER,
    parameters=ProbabilisticAdmitterParameters,
    build=_admitter,
)
