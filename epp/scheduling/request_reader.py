"""The operator's rules for requests; gives each request its priority, fairness id and model by them. Pure."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from epp.request.inference_request import (
    DEFAULT_FAIRNESS_ID,
    Body,
    InferenceRequest,
    parse_request,
    passthrough_request,
)
from epp.request.model_rewrite import ModelRewrites
from epp.request.rejection import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's rules for requests.

    `objectives`: the priority of each objective, 0 for others; requests below 0 are shed at saturation. `models`: the only
    models that exist (endpoint picker protocol 0.3.0), empty: no such rule. `passthrough`: bodies are not read, all requests
    are routed by load. `models_endpoint`: `GET /v1/models` is answered with the models of the pool. `rewrites`: which model
    serves a request. `fairness_headers`: in lower case; the first that a request has is its fairness id, if it names none itself.
    """

    objectives: Mapping[str, int] = field(default_factory=dict)
    models: frozenset[str] = frozenset()
    passthrough: bool = False
    models_endpoint: bool = False
    rewrites: ModelRewrites = field(default_factory=ModelRewrites)
    fairness_headers: tuple[str, ...] = ()


class RequestReader:
    """Reads requests under a policy. `rng`: makes ids, and decides between models that share a name."""

    def __init__(self, policy: Policy, rng: random.Random) -> None:
        self.policy = policy
        self._rng = rng
        self._new_id: Callable[[], str] = lambda: f"{rng.getrandbits(128):032x}"

    def read(
        self, headers: Mapping[str, str], body: Body | None, *, counted: bool = True
    ) -> InferenceRequest:
        """The request with its priority, its fairness id and the model that serves it; raises `Rejection`.

        `counted`: it counts among those whose model was rewritten.
        """
        policy = self.policy
        read = passthrough_request if policy.passthrough else parse_request
        request = read(headers, body, self._new_id)
        request.priority = policy.objectives.get(request.objective or "", 0)
        if policy.fairness_headers and request.fairness_id == DEFAULT_FAIRNESS_ID:
            named = (headers.get(name, "").strip() for name in policy.fairness_headers)
            request.fairness_id = next(filter(None, named), DEFAULT_FAIRNESS_ID)
        if request.model:
            target = policy.rewrites.target(request.model, headers, self._rng, counted=counted)
            if target is not None and target != request.model:
                request.rewrite(target)
        return request

    def check_model(self, request: InferenceRequest) -> None:
        """Raise `Rejection` 404 if the model is none of those that exist."""
        if self.policy.models and request.model and request.model not in self.policy.models:
            raise model_not_found(request)


def model_not_found(request: InferenceRequest) -> Rejection:
    """In the client's words: the model that it named, not what a rule made of it."""
    named = request.model if request.rewritten_from is None else request.rewritten_from
    return Rejection(404, "model_not_found", f"the model {named[:200]!r} does not exist here")
