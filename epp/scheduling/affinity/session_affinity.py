"""Sends the requests of a session to one endpoint: as a scorer or as a filter."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.request.inference_request import InferenceRequest
from epp.scheduling.affinity.session_strategies import SessionStrategy
from epp.scheduling.plugin import Scores


@dataclass(frozen=True, slots=True)
class SessionAffinityScorer:
    """1 for the endpoint of the session, 0 for all others."""

    strategy: SessionStrategy

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        row = self.strategy.find(request, pool)
        return {} if row is None else {row: 1.0}


@dataclass(frozen=True, slots=True)
class SessionAffinityFilter:
    """Keeps only the endpoint of the session; all of them if it is unknown or not among them."""

    strategy: SessionStrategy

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        row = self.strategy.find(request, pool)
        kept: Mask = np.full(len(pool), row is None)
        if row is not None:
            kept[row] = True
        return kept
