"""How full the pool is by what this picker has in flight, and a filter of the endpoints that have room.

Values: llm-d-router, plugins/flowcontrol/saturationdetector/concurrency. It needs no metrics page, so it sees a burst at
once, and it does not see what other pickers send.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.request.inference_request import InferenceRequest
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
