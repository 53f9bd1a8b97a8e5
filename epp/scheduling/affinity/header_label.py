"""Prefers the endpoints whose label has the value of a request header."""

from dataclasses import dataclass
from typing import ClassVar

from epp.endpoints.endpoint import EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import Scores


@dataclass(frozen=True, slots=True)
class HeaderLabelAffinityScorer:
    """1 where the label equals the header, else 0; `header` in lower case."""

    header: str
    label: str

    published_only: ClassVar[bool] = False

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        wanted = request.headers.get(self.header)
        if not wanted:
            return {}
        return {
            row: 1.0
            for row, endpoint in enumerate(pool.endpoints)
            if endpoint.labels.get(self.label) == wanted
        }
