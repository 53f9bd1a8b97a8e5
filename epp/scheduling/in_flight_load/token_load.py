"""Scores endpoints by the tokens that would be in flight to them with this request.

Values: llm-d-router, plugins/scheduling/scorer/tokenload.
"""

from typing import ClassVar, Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Floats
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.in_flight_load.declaration import in_flight_load
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.plugin import DataProducer

DEFAULT_QUEUE_TOKENS: Final = 4_194_304


class TokenLoadScorer:
    """1 without tokens in flight, falling to 0 at `queue_tokens`."""

    __slots__ = ("_load", "_queue_tokens")

    published_only: ClassVar[bool] = False

    def __init__(self, load: InFlightLoadProducer, queue_tokens: int = DEFAULT_QUEUE_TOKENS) -> None:
        self._load = load
        self._queue_tokens = float(queue_tokens)

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self._load,)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        tokens = self._load.tokens(pool) + self._load.uncached(request, pool)
        scores: Floats = 1.0 - np.minimum(tokens / self._queue_tokens, 1.0)
        return scores


class TokenLoadParameters(Section):
    queue_threshold_tokens: int = DEFAULT_QUEUE_TOKENS
    """The tokens in flight that score 0; 0 or less: the default."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""


def _build(given: TokenLoadParameters, context: PluginContext) -> TokenLoadScorer:
    tokens = given.queue_threshold_tokens
    load = in_flight_load(given.in_flight_load_producer_name, context)
    return TokenLoadScorer(load, tokens if tokens > 0 else DEFAULT_QUEUE_TOKENS)


TOKEN_LOAD_SCORER: Final = PluginDeclaration(
    type="token-load-scorer",
    role=Role.SCORER,
    parameters=TokenLoadParameters,
    build=_build,
    reads_metrics=False,
)
