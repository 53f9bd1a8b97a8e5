"""`Pick`: the endpoints that were chosen for a request, its helpers and further headers. Pure."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from epp.endpoints.endpoint import Endpoint
from epp.request.control_headers import is_control_header
from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.decision import Decision

Helpers: TypeAlias = Mapping[str, tuple[Endpoint, ...]]
_NO_HELPERS: Final[Helpers] = MappingProxyType({})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Pick:
    """`endpoints[0]` is the choice, the rest are its fallbacks in order; `primary` names the profile that chose them.

    `helpers`: by role, endpoints that do a part of the work, such as a prefill worker; the request counts as in flight at
    each. `headers`: further request headers for the choice, in lower case. Only control headers, which clients cannot set,
    are allowed: a worker that trusts any other name could be misled by a client. ValueError otherwise.

    `in_flight_at`: the endpoint that answers, as far as is known, and all helpers; empty once the request is over.
    `observer_state`: for the use of the `Observer`. `producers`: the data producers that were told of the pick. `settled`:
    they were told how the request ended. `scores`: of the candidates by destination, if the profile reports them.
    `prompt_hash`: identifies the prompt where endpoints may be ejected. `evict`: takes the request back from its worker, with an answer for its client;
    returns whether it was not too late. None: it cannot be taken back. `decision`: where what becomes of it is noted, if it is.
    """

    __slots__ = (
        "decision",
        "endpoints",
        "evict",
        "headers",
        "helpers",
        "in_flight_at",
        "observer_state",
        "primary",
        "producers",
        "prompt_hash",
        "request",
        "scores",
        "settled",
    )

    def __init__(
        self,
        request: InferenceRequest,
        endpoints: tuple[Endpoint, ...],
        *,
        primary: str = "",
        helpers: Helpers = _NO_HELPERS,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        self.request = request
        self.endpoints = endpoints
        self.primary = primary
        self.helpers = helpers
        self.in_flight_at = endpoints[:1]
        self.headers = headers
        self.observer_state: object = None
        self.producers: Sequence[Any] = ()
        self.settled = False
        self.prompt_hash = 0
        self.scores: Mapping[str, float] | None = None
        self.decision: Decision | None = None
        self.evict: Callable[[Rejection, float], bool] | None = None
        if helpers is not _NO_HELPERS:
            self.in_flight_at += tuple([endpoint for group in helpers.values() for endpoint in group])
        if headers is not _NO_HEADERS:
            _check(headers)


def _check(headers: Mapping[str, str]) -> None:
    for name in headers:
        if not is_control_header(name):
            raise ValueError(
                f"a pick sets the header {name[:100]!r}, which clients can set too; expected a name in lower case that "
                "begins with x-llm-d- or x-gateway-, or one of epp/request/control_headers.py"
            )
