"""The plugins that count what is in flight: the data producer's declaration, a scorer, and a detector that is a filter too.

Values: llm-d-router, plugins/scheduling/scorer/tokenload and plugins/flowcontrol/saturationdetector/concurrency. The detector
needs no metrics page, so it sees a burst at once, and it does not see what other pickers send.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import numpy as np
from prometheus_client import Metric
from pydantic import Field

from adsum.metric_families import gauge
from epp.endpoints.endpoint import EndpointPool, Floats, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.labels import PREFIX, label_value
from epp.plugins.section import Headroom, Limit, Section
from epp.request.inference_request import DEFAULT_FAIRNESS_ID, InferenceRequest
from epp.scheduling.in_flight_load.producer import (
    DEFAULT_OUTPUT_RATIO,
    PRODUCER,
    InFlightLoadProducer,
    OutputEstimate,
)
from epp.scheduling.plugin import DataProducer
from epp.scheduling.prefix.declarations import APPROX_PREFIX_CACHE_PRODUCER, prefix_matches


class InflightLoadParameters(Section):
    add_estimated_output_tokens: bool = False
    """Count the answer too."""
    output_ratio: float = Field(default=DEFAULT_OUTPUT_RATIO, ge=0.0, allow_inf_nan=False)
    """The estimated tokens of an answer for each token of its prompt."""
    max_estimated_output_tokens: int | None = Field(default=None, ge=0)
    """The most that an answer is estimated at."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's. A file without one counts whole prompts."""
    sync_cross_replica_state: bool = True
    """No effect: this producer counts what its own picker sent."""

    def output(self) -> OutputEstimate | None:
        if not self.add_estimated_output_tokens:
            return None
        return OutputEstimate(self.output_ratio, self.max_estimated_output_tokens)


def in_flight_load(name: str | None, context: PluginContext) -> InFlightLoadProducer:
    """The producer of that name, else the one that has the name of its type; it is added if the file lists none."""
    return context.producer(
        name or PRODUCER, InFlightLoadProducer, default=PRODUCER, field="inFlightLoadProducerName"
    )


def _producer(given: InflightLoadParameters, context: PluginContext) -> InFlightLoadProducer:
    """Ask the producer that is named what endpoints hold already, else the one that other plugins use."""
    named = given.prefix_match_info_producer_name
    used = context.is_wanted(APPROX_PREFIX_CACHE_PRODUCER.type, "prefix_match_info_producer_name")
    matches = prefix_matches(named, context) if named or used else None
    load = InFlightLoadProducer(context.name, matches, given.output())
    context.follow(load)
    if matches is not None:
        context.follow(matches)
    return load


_METRIC_LABELS: Final = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


def in_flight_metrics(producers: Sequence[InFlightLoadProducer]) -> Iterator[Metric]:
    """An endpoint has one sample, 0, once all that was sent there has ended."""
    found = [one for producer in producers for one in _samples(producer).items()]
    for index, name, help_text in (
        (0, "inflight_requests", "Requests sent there that have not ended."),
        (1, "inflight_tokens", "Tokens sent there that are not computed yet."),
    ):
        samples = [(labels, counts[index]) for labels, counts in found]
        yield gauge(PREFIX + name, help_text, _METRIC_LABELS, samples)


def _samples(producer: InFlightLoadProducer) -> Mapping[tuple[str, ...], tuple[int, int]]:
    """Requests and tokens by the values of the labels. Ids that are shown alike count together: one sample must not be there
    twice, and clients choose their fairness ids."""
    sums: dict[tuple[str, ...], tuple[int, int]] = {}
    for (name, namespace, fairness_id, priority), load in producer.labelled.items():
        labels = (name, namespace, producer.name, label_value(fairness_id), str(priority))
        requests, tokens = sums.get(labels, (0, 0))
        sums[labels] = requests + load.requests, tokens + load.tokens
    busy = {labels[:2] for labels in sums}
    for endpoint in producer.endpoints:
        if (endpoint.id, endpoint.namespace) not in busy:
            sums[endpoint.id, endpoint.namespace, producer.name, DEFAULT_FAIRNESS_ID, "0"] = 0, 0
    return sums


INFLIGHT_LOAD_PRODUCER: Final = PluginDeclaration(
    type=PRODUCER,
    role=Role.PRODUCER,
    parameters=InflightLoadParameters,
    build=_producer,
    metrics=in_flight_metrics,
)


DEFAULT_QUEUE_TOKENS: Final = 4_194_304


class TokenLoadScorer:
    """1 without tokens in flight, falling to 0 at `queue_tokens`."""

    published_only: ClassVar[bool] = False

    def __init__(self, load: InFlightLoadProducer, queue_tokens: int = DEFAULT_QUEUE_TOKENS) -> None:
        self._load = load
        self.producers: tuple[DataProducer, ...] = (load,)
        self._queue_tokens = float(queue_tokens)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        tokens = self._load.tokens(pool) + self._load.uncached(request, pool)
        scores: Floats = 1.0 - np.minimum(tokens / self._queue_tokens, 1.0)
        return scores


class TokenLoadParameters(Section):
    queue_threshold_tokens: int = DEFAULT_QUEUE_TOKENS
    """The tokens in flight that score 0; 0 or less: the default."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""


def _scorer(given: TokenLoadParameters, context: PluginContext) -> TokenLoadScorer:
    tokens = given.queue_threshold_tokens
    load = in_flight_load(given.in_flight_load_producer_name, context)
    return TokenLoadScorer(load, tokens if tokens > 0 else DEFAULT_QUEUE_TOKENS)


TOKEN_LOAD_SCORER: Final = PluginDeclaration(
    type="token-load-scorer",
    role=Role.SCORER,
    parameters=TokenLoadParameters,
    build=_scorer,
    reads_metrics=False,
)


DEFAULT_REQUESTS: Final = 100
DEFAULT_TOKENS: Final = 1_000_000


class ConcurrencyParameters(Section):
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """Count requests, their tokens, or (`hybrid`) the larger share of both at each endpoint."""
    max_concurrency: Limit = DEFAULT_REQUESTS
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Limit = DEFAULT_TOKENS
    """Tokens in flight at which an endpoint is full."""
    headroom: Headroom = 0.0
    """As a filter: keeps endpoints up to this share above the limit."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""


@dataclass(frozen=True, slots=True)
class ConcurrencyDetector:
    """As in the Go picker the filter may leave none."""

    load: InFlightLoadProducer
    given: ConcurrencyParameters = field(default_factory=ConcurrencyParameters)

    counts_in_flight: ClassVar[bool] = True
    staleness: ClassVar[float | None] = None

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self.load,)

    def with_sent(self, pool: EndpointPool) -> float:
        return self.saturation(pool)

    def room(self, endpoints: int) -> float | None:
        return (
            float(self.given.max_concurrency * endpoints)
            if self.given.concurrency_mode == "requests"
            else None
        )

    def saturation(self, pool: EndpointPool) -> float:
        """The share of all requests or tokens: a mean of the endpoints' shares may stay below 1.0 where the pool is full."""
        if not len(pool):
            return 1.0
        if self.given.concurrency_mode == "requests":
            return float(pool.inflight.sum()) / (self.given.max_concurrency * len(pool))
        tokens = self.load.tokens(pool)
        if self.given.concurrency_mode == "tokens":
            return float(tokens.sum()) / (self.given.max_token_concurrency * len(pool))
        return float(
            np.maximum(
                pool.inflight / self.given.max_concurrency, tokens / self.given.max_token_concurrency
            ).mean()
        )

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        requests, tokens = (
            int(limit * (1.0 + self.given.headroom))
            for limit in (self.given.max_concurrency, self.given.max_token_concurrency)
        )
        fits: Mask = np.ones(len(pool), dtype=np.bool_)
        if self.given.concurrency_mode != "tokens":
            fits &= pool.inflight < requests
        if self.given.concurrency_mode != "requests":
            fits &= self.load.tokens(pool) < tokens
        return fits


def _detector(given: ConcurrencyParameters, context: PluginContext) -> ConcurrencyDetector:
    return ConcurrencyDetector(in_flight_load(given.in_flight_load_producer_name, context), given)


CONCURRENCY_DETECTOR: Final = PluginDeclaration(
    type="concurrency-detector",
    role=Role.DETECTOR,
    also=Role.FILTER,
    parameters=ConcurrencyParameters,
    build=_detector,
)
