"""Scores endpoints by what this picker has sent and no metrics page shows yet.

Pages are up to 50 ms old, so in a burst all requests see the same page and would go to the same endpoint: 300 at once on
three nearly equal workers all went to one without this scorer, 43 % with it (benchmarks/routing/README.md).
"""

from typing import ClassVar, Final

from epp.endpoints.endpoint import EndpointPool, Floats
from epp.request.inference_request import InferenceRequest

DEFAULT_REQUESTS: Final = 32
"""From 16 to 64, shared prefixes take equally long (`benchmarks/routing`); below 16, 300 requests at once spread worse."""


class InFlightScorer:
    """1 if the page shows all that was sent, 0.5 if `requests` are not shown yet, falling to 0.

    Requests that the page shows are left to the scorers that read it: counted twice, load would outweigh prefixes.
    """

    published_only: ClassVar[bool] = False

    def __init__(self, requests: int = DEFAULT_REQUESTS) -> None:
        self.requests = float(requests)
        """This many that are not shown yet halve the score."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        scores: Floats = self.requests / (self.requests + pool.unreported)
        return scores

    def score_of(self, unreported: float) -> float:
        return self.requests / (self.requests + unreported)
