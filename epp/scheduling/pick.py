"""What became of one request: where it goes, and who helps. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from epp.endpoints.endpoint import Endpoint
from epp.request.control_headers import is_control
from epp.request.inference_request import InferenceRequest

Helpers: TypeAlias = Mapping[str, tuple[Endpoint, ...]]


class Pick:
    """`endpoints[0]` is the choice, the rest are its fallbacks in order; `primary` names the profile that chose them.

    `helpers`: by role, the endpoints that do a part of the work, as a prefill worker does; the request counts as in flight
    at each of them. `headers`: what the choice is told besides, under names in lower case that no client can set: any
    other name is a ValueError.

    `observed`: what who observes it keeps with it. `settled`: the data producers know how it ended.
    """

    __slots__ = ("endpoints", "headers", "helpers", "observed", "primary", "request", "settled")

    def __init__(
        self,
        request: InferenceRequest,
        endpoints: tuple[Endpoint, ...],
        *,
        primary: str = "",
        helpers: Helpers | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.request = request
        self.endpoints = endpoints
        self.primary = primary
        self.helpers: Helpers = helpers or _NO_HELPERS
        self.headers: Mapping[str, str] = headers or _NO_HEADERS
        self.observed: object = None
        self.settled = False
        if headers:
            _check(headers)

    def at_work(self, server: Endpoint) -> tuple[Endpoint, ...]:
        """All that take part where `server` answers, it first."""
        if not self.helpers:
            return (server,)
        return (server, *[endpoint for group in self.helpers.values() for endpoint in group])


_NO_HELPERS: Final[Helpers] = MappingProxyType({})
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def _check(headers: Mapping[str, str]) -> None:
    for name in headers:
        if not is_control(name):
            raise ValueError(
                f"a pick sets the header {name[:100]!r}, which clients may set too; expected a name in lower case that "
                "begins with x-llm-d- or x-gateway-, or one of epp/request/control_headers.py"
            )
