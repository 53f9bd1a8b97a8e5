"""What a scheduling plugin is. Plugins see columns, not objects: `pool.waiting[i]` belongs to `pool.endpoints[i]`."""

from typing import Protocol

from epp.endpoint import EndpointPool, Floats, Indices, Mask
from epp.request import InferenceRequest


class Filter(Protocol):
    """Says which endpoints a request may go to."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """True where the endpoint stays; one bool per endpoint.

        To leave nothing means that no endpoint is fit at all (503). A filter that refuses because of load raises
        `Rejection` (429) itself, or keeps all of them.
        """


class Scorer(Protocol):
    """Says how good each endpoint is for a request."""

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        """One value per endpoint from 0 to 1, 1 the best; what lies outside is clamped, NaN counts as 0."""


class Picker(Protocol):
    """Chooses by the sum of the scores."""

    def pick(self, scores: Floats, k: int) -> Indices:
        """At most `k` different indices, the choice first, then its fallbacks; `scores` is never empty."""
