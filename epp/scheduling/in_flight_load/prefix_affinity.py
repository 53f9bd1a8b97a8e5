"""Keeps the endpoints that hold most of the prompt, unless they have so much to do that others would answer sooner.

Parameters and values: llm-d-router, plugins/scheduling/filter/prefixcacheaffinity.
"""

import random
from typing import Annotated, Final

import numpy as np
from pydantic import Field, model_validator

from adsum.config.sections import parsed_by
from epp.endpoints.endpoint import EndpointPool, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.in_flight_load.plugins import in_flight_load
from epp.scheduling.plugin import DataProducer
from epp.scheduling.prefix.declarations import prefix_matches
from epp.scheduling.prefix.scorer import units_of_all

DEFAULT_THRESHOLD: Final = 0.80
DEFAULT_PENALTY: Final = 18.0
DEFAULT_THROUGHPUT: Final = 15928.0


def _parse_source(text: str) -> str:
    if text == "latencyPredictor":
        raise ValueError(
            "'latencyPredictor' is not supported: no latency is predicted; use prefillThroughput, with peakPrefillThroughput"
        )
    if text != "prefillThroughput":
        raise ValueError(f"{text[:60]!r} is no source of TTFT; expected prefillThroughput")
    return text


class PrefixAffinityParameters(Section):
    """Without any limit it is sticky whatever the load."""

    affinity_threshold: float = Field(default=DEFAULT_THRESHOLD, le=1.0, allow_inf_nan=False)
    """The share of the prompt that an endpoint has to hold to be kept."""
    exploration_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of requests that the filter lets pass."""
    max_ttft_penalty_ms: float = Field(
        default=DEFAULT_PENALTY * 1000.0, ge=0.0, allow_inf_nan=False, alias="maxTTFTPenaltyMs"
    )
    """An answer may begin this many milliseconds later there than elsewhere; 0: no limit."""
    ttft_source: Annotated[str, parsed_by(_parse_source)] = "prefillThroughput"
    """`prefillThroughput`, the only one: no latency is predicted."""
    peak_prefill_throughput: float = Field(default=DEFAULT_THROUGHPUT, ge=0.0, allow_inf_nan=False)
    """Tokens of prompts that a worker computes in a second. Measure yours."""
    max_tokens_in_flight_penalty: int = Field(default=0, ge=0)
    """The limit in tokens in flight, of earlier Go pickers; 0: none. The smaller limit counts."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""
    latency_prediction_info_producer_name: str | None = None
    """No effect."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""

    @model_validator(mode="after")
    def _check_throughput(self) -> "PrefixAffinityParameters":
        if self.max_ttft_penalty_ms and not self.peak_prefill_throughput:
            raise ValueError("peakPrefillThroughput must be above 0, unless maxTTFTPenaltyMs is 0")
        return self

    def penalty(self) -> float:
        """The smaller of both limits in tokens; 0: none."""
        limits = (
            self.max_ttft_penalty_ms / 1000.0 * self.peak_prefill_throughput,
            float(self.max_tokens_in_flight_penalty),
        )
        return min((limit for limit in limits if limit), default=0.0)


class PrefixCacheAffinityFilter:
    """An endpoint is sticky if it holds the share `affinityThreshold` of the prompt's blocks; 0: none is.

    All are kept if none is sticky, or if the best sticky one has `penalty` more tokens in flight than the best other one.
    """

    def __init__(self, given: PrefixAffinityParameters, context: PluginContext) -> None:
        self._given = given
        self._penalty = given.penalty()
        self._matches = prefix_matches(given.prefix_match_info_producer_name, context)
        self._load = in_flight_load(given.in_flight_load_producer_name, context) if self._penalty else None
        self.producers: tuple[DataProducer, ...] = (
            (self._matches,) if self._load is None else (self._load, self._matches)
        )
        self._rng = random.Random(context.rng.getrandbits(64))

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        everything: Mask = np.ones(len(pool), dtype=np.bool_)
        if len(pool) <= 1 or self._given.affinity_threshold <= 0.0 or self._explores():
            return everything
        chain = self._matches.chain(request)
        if chain is None or not chain.units:
            return everything
        held = units_of_all(self._matches.matches(request, pool), len(pool))
        sticky: Mask = held / chain.units >= self._given.affinity_threshold
        count = np.count_nonzero(sticky)
        if not count or (count < len(pool) and self._others_are_sooner(sticky, pool)):
            return everything
        return sticky

    def _explores(self) -> bool:
        return self._rng.random() < self._given.exploration_probability

    def _others_are_sooner(self, sticky: Mask, pool: EndpointPool) -> bool:
        if self._load is None:
            return False
        tokens = self._load.tokens(pool)
        behind = float(tokens[sticky].min()) - float(tokens[~sticky].min())
        return behind > self._penalty


PREFIX_CACHE_AFFINITY_FILTER: Final = PluginDeclaration(
    type="prefix-cache-affinity-filter",
    role=Role.FILTER,
    parameters=PrefixAffinityParameters,
    build=PrefixCacheAffinityFilter,
)
