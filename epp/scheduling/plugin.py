"""What a scheduling plugin is. Plugins see columns, not objects: `pool.waiting[i]` belongs to `pool.endpoints[i]`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

from epp.endpoints.endpoint import Endpoint, EndpointPool, Floats, Indices, Mask
from epp.request.inference_request import InferenceRequest
from epp.scheduling.pick import Pick
from epp.scheduling.profile_result import Results

Scores: TypeAlias = Floats | Mapping[int, float]
"""A float64 column, or by row only what is not 0."""


class Filter(Protocol):
    """Says which endpoints a request may go to."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        """True where the endpoint stays; one bool per endpoint.

        To leave nothing means that no endpoint is fit at all (503). A filter that refuses because of load raises
        `Rejection` (429) itself, or keeps all of them.
        """


class Scorer(Protocol):
    """Says how good each endpoint is for a request."""

    @property
    def published_only(self) -> bool:
        """Whether it looks at nothing but the numbers and labels that the workers publish: not at the request, not at what
        is in flight or how old the numbers are. Then it is asked once for each state of the pool, not for each request.

        A class attribute, as a rule. `epp.scheduling.published_only.check_published_only` finds in a test what it reads besides.
        """

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Scores:
        """One value per endpoint from 0 to 1, 1 the best; what lies outside is clamped, NaN counts as 0."""


class DataProducer(Protocol):
    """Prepares, once per request, what scorers and the profile handler read of it, and learns what became of it.

    After `picked` comes `served` or `failed`, once. Where endpoints are given for a request, the first is the one that
    answers, the others are its helpers (`Pick.helpers`).
    """

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        """Called before the first profile, with all endpoints that may serve the request."""

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """The request is on its way to those endpoints."""

    def served(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """They answered the request, with success; the first need not be the one that was picked."""

    def failed(self, request: InferenceRequest) -> None:
        """No endpoint that is known served the request: it was answered with an error, or not at all."""

    def sized(self, endpoint: Endpoint, tokens: int) -> None:
        """Its metrics page says how many tokens its KV cache has room for."""

    def forget(self, endpoint: Endpoint) -> None:
        """Its process is gone or another one: what was known of its cache is void."""

    def retain(self, endpoints: Sequence[Endpoint]) -> None:
        """Endpoints came or went; these are there."""


class Picker(Protocol):
    """Chooses by the sum of the scores."""

    def pick(self, scores: Floats, k: int) -> Indices:
        """At most `k` different indices, the choice first, then its fallbacks; `scores` is never empty."""


class ProfileHandler(Protocol):
    """Says which profiles a request passes, and what their choices together mean: as in the Go picker.

    `pick` is called with no results, then again with those that it asked for, until it asks for none; then `result`.
    What a request's prompt has in an endpoint's cache already, `epp.scheduling.prefix.match.prefix_match` tells.
    """

    def check(self, profiles: Collection[str]) -> None:
        """Called when a configuration is built; raises ValueError where the handler cannot work with these profiles."""

    def pick(self, request: InferenceRequest, profiles: Collection[str], results: Results) -> Sequence[str]:
        """Which of the profiles run next; none: it is over. Those that have run do not run again."""

    def result(self, request: InferenceRequest, results: Results) -> Pick:
        """The pick that follows from all results; raises `Rejection`, as where the primary profile has one."""
