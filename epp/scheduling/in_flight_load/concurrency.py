"""How full the pool is by what this picker has in flight, and a filter of the endpoints that have room.

Values: llm-d-router, plugins/flowcontrol/saturationdetector/concurrency. It needs no metrics page, so it sees a burst at
once, and it does not see what other pickers send.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Literal

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Headroom, Limit, Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.in_flight_load.declaration import in_flight_load
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.plugin import DataProducer

DEFAULT_REQUESTS: Final = 100
DEFAULT_TOKENS: Final = 1_000_000


class ConcurrencyMode(StrEnum):
    """What counts: requests, tokens, or at each endpoint the larger of both."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class ConcurrencyDetector:
    """`requests`, `tokens`: what one endpoint should have in flight. As a filter it allows the share `headroom` more.

    As in the Go picker the filter may leave none.
    """

    load: InFlightLoadProducer
    mode: ConcurrencyMode = ConcurrencyMode.REQUESTS
    requests: int = DEFAULT_REQUESTS
    tokens: int = DEFAULT_TOKENS
    headroom: float = 0.0

    counts_in_flight: ClassVar[bool] = True

    @property
    def producers(self) -> tuple[DataProducer, ...]:
        return (self.load,)

    def saturation(self, pool: EndpointPool) -> float:
        """Of all requests or tokens together: a mean of the endpoints' shares may stay below 1.0 where the pool is full."""
        if not len(pool):
            return 1.0
        if self.mode is ConcurrencyMode.REQUESTS:
            return float(pool.inflight.sum()) / (self.requests * len(pool))
        tokens = self.load.tokens(pool)
        if self.mode is ConcurrencyMode.TOKENS:
            return float(tokens.sum()) / (self.tokens * len(pool))
        return float(np.maximum(pool.inflight / self.requests, tokens / self.tokens).mean())

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        requests, tokens = (int(limit * (1.0 + self.headroom)) for limit in (self.requests, self.tokens))
        fits: Mask = np.ones(len(pool), dtype=np.bool_)
        if self.mode is not ConcurrencyMode.TOKENS:
            fits &= pool.inflight < requests
        if self.mode is not ConcurrencyMode.REQUESTS:
            fits &= self.load.tokens(pool) < tokens
        return fits


class ConcurrencyParameters(Section):
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """What counts; `hybrid`: the larger of both at each endpoint."""
    max_concurrency: Limit = DEFAULT_REQUESTS
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Limit = DEFAULT_TOKENS
    """Tokens in flight at which an endpoint is full."""
    headroom: Headroom = 0.0
    """As a filter: keeps endpoints up to this share above the limit."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""


def _build(given: ConcurrencyParameters, context: PluginContext) -> ConcurrencyDetector:
    return ConcurrencyDetector(
        in_flight_load(given.in_flight_load_producer_name, context),
        ConcurrencyMode(given.concurrency_mode),
        given.max_concurrency,
        given.max_token_concurrency,
        given.headroom,
    )


CONCURRENCY_DETECTOR: Final = PluginDeclaration(
    type="concurrency-detector",
    role=Role.DETECTOR,
    also=Role.FILTER,
    parameters=ConcurrencyParameters,
    build=_build,
)
