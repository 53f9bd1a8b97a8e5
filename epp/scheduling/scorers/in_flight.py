"""What this picker itself has sent, newer than any page: it decides between endpoints whose pages differ by a hair."""

from typing import ClassVar, Final

from epp.endpoints.endpoint import EndpointPool, Floats
from epp.request.inference_request import InferenceRequest

DEFAULT_REQUESTS: Final = 32
"""From 16 to 64 shared beginnings take equally long (`benchmarks/routing`); below, 300 at once are spread worse."""


class InFlightScorer:
    """1 for an endpoint whose page shows all that was sent there, a half where `requests` are not shown yet, and on to 0.

    What the page shows is left to the scorers that read it. To count it twice would be load against prefixes.
    """

    __slots__ = ("_requests",)

    published_only: ClassVar[bool] = False

    def __init__(self, requests: int = DEFAULT_REQUESTS) -> None:
        self._requests = float(requests)

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        scores: Floats = self._requests / (self._requests + pool.unreported)
        return scores

    def score_of(self, unreported: float) -> float:
        """The score of one endpoint; it falls with what was sent."""
        return self._requests / (self._requests + unreported)
