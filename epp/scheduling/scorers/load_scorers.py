"""The scorers. Names, parameters and values are those of the Go picker; the tests hold its table of values."""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Floats
from epp.request.inference_request import InferenceRequest


@dataclass(frozen=True, slots=True)
class QueueScorer:
    """The shortest queue gets 1, the longest 0, as does one that is longer by 128; all 1 when they are equal."""

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return _fewest(pool.waiting, _QUEUE_SPREAD)


@dataclass(frozen=True, slots=True)
class RunningRequestsSizeScorer:
    """The fewest running requests get 1, the most 0, as do 1,024 more; all 1 when they are equal."""

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
    """1 where the adapter runs, 0.8 where a slot is free for it, 0.6 where it already waits, else 0."""

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


@dataclass(frozen=True, slots=True)
class LoadAwareScorer:
    """0.5 for an empty queue, down to 0 for one of `threshold` requests or more."""

    threshold: int = 128

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        return 0.5 * (1.0 - np.minimum(pool.waiting, self.threshold) / self.threshold)


@dataclass(frozen=True, slots=True)
class ActiveRequestScorer:
    """By what this picker has in flight: 1 up to `idle_threshold`, else the share below the most, times `max_busy_score`."""

    idle_threshold: int = 0
    max_busy_score: float = 1.0

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        inflight = pool.inflight
        most = max(inflight.max(initial=0.0), 1.0)
        return np.where(inflight <= self.idle_threshold, 1.0, (most - inflight) / most * self.max_busy_score)


_QUEUE_SPREAD: Final = 128.0
_RUNNING_SPREAD: Final = 1024.0
"""Between the best and the worst: beyond it one page that says 100,000 would make 0 and 100 look alike."""


def _fewest(counts: Floats, spread: float) -> Floats:
    least, most = counts.min(initial=np.inf), counts.max(initial=-np.inf)
    if least >= most:
        return np.ones(len(counts))
    most = min(most, least + spread)
    scores: Floats = np.maximum(most - counts, 0.0) / (most - least)
    return scores
