"""Keeps the endpoints that hold most of the prompt, unless they have so much to do that others would answer sooner.

Parameters and values: llm-d-router, plugins/scheduling/filter/prefixcacheaffinity.
"""

import random
from typing import Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.request.inference_request import InferenceRequest
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.plugin import DataProducer
from epp.scheduling.prefix.match_producer import PrefixMatchProducer

DEFAULT_THRESHOLD: Final = 0.80
DEFAULT_PENALTY: Final = 18.0
DEFAULT_THROUGHPUT: Final = 15928.0


class PrefixCacheAffinityFilter:
    """An endpoint is sticky if it holds the share `threshold` of the prompt's blocks; 0: none is.

    All are kept if none is sticky, if the best sticky one has `penalty` more tokens in flight than the best other one (0:
    never), or with the probability `exploration`.
    """

    __slots__ = ("_exploration", "_load", "_matches", "_penalty", "_rng", "_threshold")

    def __init__(
        self, matches: PrefixMatchProducer, load: InFlightLoadProducer | None, rng: random.Random, *,
        threshold: float = DEFAULT_THRESHOLD, exploration: float = 0.0, penalty: float = DEFAULT_PENALTY * DEFAULT_THROUGHPUT,
    ) -> None:  # fmt: skip
        self._matches = matches
        self._load = load
        self._rng = rng
        self._threshold = threshold
        self._exploration = exploration
        self._penalty = penalty

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self._matches,) if self._load is None else (self._load, self._matches)

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        everything: Mask = np.ones(len(pool), dtype=np.bool_)
        if len(pool) <= 1 or self._threshold <= 0.0 or self._explores():
            return everything
        chain = self._matches.chain(request)
        held = self._matches.matched_units(request, pool)
        if chain is None or held is None or not chain.units:
            return everything
        sticky: Mask = held / chain.units >= self._threshold
        count = np.count_nonzero(sticky)
        if not count or (count < len(pool) and self._others_are_sooner(sticky, pool)):
            return everything
        return sticky

    def _explores(self) -> bool:
        return self._exploration > 0.0 and self._rng.random() < self._exploration

    def _others_are_sooner(self, sticky: Mask, pool: EndpointPool) -> bool:
        if self._load is None or self._penalty <= 0.0:
            return False
        tokens = self._load.tokens(pool)
        behind = float(tokens[sticky].min()) - float(tokens[~sticky].min())
        return behind > self._penalty
