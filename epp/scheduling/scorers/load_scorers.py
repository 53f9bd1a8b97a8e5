"""Scores endpoints by queue, running requests, KV cache and adapters.

Names, parameters and values are those of the Go picker; the tests compare with a table of its values.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import EndpointPool, Floats
from epp.plugins.declaration import PluginDeclaration, Role, only_parameters, without_parameters
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.scorers.in_flight import DEFAULT_REQUESTS, InFlightScorer


@dataclass(frozen=True, slots=True)
class QueueScorer:
    """1 for the shortest queue, 0 for the longest and for any that is 128 longer; 1 for all if they are equal."""

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return _fewest(pool.waiting, _QUEUE_SPREAD)


@dataclass(frozen=True, slots=True)
class RunningRequestsSizeScorer:
    """1 for the fewest running requests, 0 for the most and for any with 1,024 more; 1 for all if they are equal."""

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return _fewest(pool.running, _RUNNING_SPREAD)


@dataclass(frozen=True, slots=True)
class KvCacheUtilizationScorer:
    """The free share of the KV cache."""

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return 1.0 - pool.kv_usage


@dataclass(frozen=True, slots=True)
class LoraAffinityScorer:
    """1 if the adapter runs, 0.8 if a slot is free for it, 0.6 if it waits already, else 0."""

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        max_lora = pool.max_lora.tolist()
        scores = np.zeros(len(pool))
        for i, adapters in enumerate(pool.adapters):
            if request.model in adapters.active:
                scores[i] = 1.0
            elif len(adapters.active) + len(adapters.waiting) < max_lora[i]:
                scores[i] = 0.8
            elif request.model in adapters.waiting:
                scores[i] = 0.6
        return scores


_QUEUE_SPREAD: Final = 128.0
_RUNNING_SPREAD: Final = 1024.0
"""The difference that makes a score of 0. Without it one page with 100,000 would make 0 and 100 look alike."""


def _fewest(counts: Floats, spread: float) -> Floats:
    least, most = counts.min(initial=np.inf), counts.max(initial=-np.inf)
    if least >= most:
        return np.ones(len(counts))
    most = min(most, least + spread)
    scores: Floats = np.maximum(most - counts, 0.0) / (most - least)
    return scores


class LoadAwareScorer(Section):
    """0.5 for an empty queue, down to 0 for one of `threshold` requests or more."""

    published_only: ClassVar[bool] = True

    threshold: int = Field(default=128, ge=1)
    """The queue length that scores 0."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return 0.5 * (1.0 - np.minimum(pool.waiting, self.threshold) / self.threshold)


class ActiveRequestScorer(Section):
    """1 up to `idle_threshold` requests of this picker in flight, else the share below the most, times `max_busy_score`."""

    published_only: ClassVar[bool] = False

    idle_threshold: int = Field(default=0, ge=0)
    """Up to so many requests in flight an endpoint scores 1."""
    max_busy_score: float = Field(default=1.0, ge=0.0, le=1.0)
    """The most that an endpoint above it scores."""
    request_timeout: str | None = None
    """No effect."""
    in_flight_load_producer_name: str | None = None
    """No effect: requests in flight are always counted."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        inflight = pool.inflight
        most = max(inflight.max(initial=0.0), 1.0)
        return np.where(inflight <= self.idle_threshold, 1.0, (most - inflight) / most * self.max_busy_score)


QUEUE_SCORER: Final = without_parameters("queue-scorer", Role.SCORER, QueueScorer)
KV_CACHE_UTILIZATION_SCORER: Final = without_parameters(
    "kv-cache-utilization-scorer", Role.SCORER, KvCacheUtilizationScorer
)
RUNNING_REQUESTS_SIZE_SCORER: Final = without_parameters(
    "running-requests-size-scorer", Role.SCORER, RunningRequestsSizeScorer
)
LORA_AFFINITY_SCORER: Final = without_parameters("lora-affinity-scorer", Role.SCORER, LoraAffinityScorer)
LOAD_AWARE_SCORER: Final = only_parameters("load-aware-scorer", Role.SCORER, LoadAwareScorer)
ACTIVE_REQUEST_SCORER: Final = only_parameters(
    "active-request-scorer", Role.SCORER, ActiveRequestScorer, reads_metrics=False
)


class InFlightParameters(Section):
    requests: int = Field(default=DEFAULT_REQUESTS, ge=1)
    """This many requests that the page does not show yet score 0.5."""


IN_FLIGHT_SCORER: Final = PluginDeclaration(
    type="in-flight-scorer",
    role=Role.SCORER,
    parameters=InFlightParameters,
    build=lambda given, context: InFlightScorer(given.requests),
)
