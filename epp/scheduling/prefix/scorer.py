"""The score of a prefix: how much of the prompt an endpoint is believed to hold. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats
from epp.request.inference_request import InferenceRequest, PrefixChain
from epp.scheduling.plugin import DataProducer, PrefixMatchProducer, Scores
from epp.scheduling.prefix.producer import PrefixCacheProducer


@dataclass(frozen=True, slots=True)
class PrefixCacheScorer:
    """The share of the prompt, counted in blocks from its beginning, that the endpoint holds.

    `length_weight`: the part of the score, 0 to 1, that is instead the square of (tokens held / `length_scale`).
    """

    producer: PrefixMatchProducer
    length_weight: float = 0.0
    length_scale: int = 8192

    @property
    def published_only(self) -> bool:  # a class attribute of a compiled dataclass would be one of its fields
        return False

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self.producer,)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        prefix = self.producer.chain(request)
        if prefix is None:
            return {}
        matches = self.producer.matches(request, pool)
        if isinstance(matches, dict):
            return {row: self._score(units, prefix) for row, units in matches.items()}
        scores: Floats = self._score(matches, prefix)
        return scores

    def _score(self, units: Any, prefix: PrefixChain) -> Any:
        """`units`: a number, or a column of numbers."""
        share = units / prefix.units
        if not self.length_weight:
            return share
        length = np.minimum(units * prefix.unit_tokens / self.length_scale, 1.0)
        return self.length_weight * length**2 + (1.0 - self.length_weight) * share


def units_of_all(matches: Mapping[int, int] | Floats, count: int) -> Floats:
    """The result of `PrefixMatchProducer.matches`, as a column of so many endpoints."""
    if not isinstance(matches, Mapping):
        return matches
    units: Floats = np.zeros(count)
    for row, held in matches.items():
        units[row] = held
    return units


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """`held`: tokens of the prompt's beginning that the endpoint holds; `prompt`: tokens of all of it.

    The data producer counts 4 bytes as one token.
    """

    held: int
    prompt: int


def prefix_match(request: InferenceRequest, endpoint: Endpoint) -> PrefixMatch | None:
    """The part of the prompt that the endpoint is believed to hold; None if no data producer has seen the prompt.

    That is so if the configuration has neither an `approx-prefix-cache-producer` nor a scorer that needs one, or the
    request has no prompt. With several producers, the longest match counts.
    """
    matches = [
        PrefixMatch(producer.held(request, endpoint), chain.units * chain.unit_tokens)
        for producer, chain in request.prefixes.items()
        if isinstance(producer, PrefixCacheProducer)
    ]
    return max(matches, key=lambda match: match.held, default=None)
