"""Finds the endpoint of a request's session: named by a token that the client sends back, or remembered by session id.

Names and behaviour: llm-d-router, plugins/scheduling/util/sessionaffinity. Both are foreign bytes: a token or an id only
chooses among the endpoints that may serve the request.
"""

import binascii
import hashlib
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.request.inference_request import InferenceRequest
from epp.scheduling.affinity.session_id import SessionId
from epp.scheduling.pick import Pick
from epp.scheduling.request_follower import RequestFollower

TOKEN_HEADER: Final = "x-session-token"  # noqa: S105  # a header's name
_MAX_TOKEN: Final = 1024
"""Characters of a token: a Pod's name and namespace have 253 and 63 at most."""
MAX_SESSIONS: Final = 100_000
"""Sessions that are remembered, about 25 MB; the one that was used longest ago is forgotten first."""
DEFAULT_TTL: Final = 300.0
"""Seconds for which a session is remembered after its last request."""
_DIGEST_BYTES: Final = 16


class SessionStrategy(Protocol):
    """Finds the endpoint to which a request's session belongs."""

    def find(self, request: InferenceRequest, pool: EndpointPool) -> int | None:
        """Its row; None: the request has no session, the session no endpoint yet, or its endpoint is not in the pool."""


def row_of(name: str, pool: EndpointPool) -> int | None:
    """The row of the endpoint with that id."""
    return next((row for row, endpoint in enumerate(pool.endpoints) if endpoint.id == name), None)


class EncodedEndpointHeader:
    """The client sends back the token that its last answer had: base64 of `namespace/name` of the endpoint.

    The name decides alone: a token of a Go picker counts whatever it takes for the namespace. `header` in lower case.
    """

    __slots__ = ("header",)

    def __init__(self, header: str = TOKEN_HEADER) -> None:
        self.header = header

    def find(self, request: InferenceRequest, pool: EndpointPool) -> int | None:
        token = request.headers.get(self.header)
        name = _decode(token) if token else ""
        return row_of(name, pool) if name else None

    def response_headers(self, pick: Pick, served: str | None) -> Mapping[str, str]:
        """The token of the endpoint that answers."""
        if not pick.in_flight_at:
            return {}
        return {self.header: token_of(pick.in_flight_at[0])}


def token_of(endpoint: Endpoint) -> str:
    return b64encode(f"{endpoint.namespace}/{endpoint.id}".encode()).decode()


def _decode(token: str) -> str:
    """The name in a token, empty if it is none."""
    if len(token) > _MAX_TOKEN:
        return ""
    try:
        return b64decode(token, validate=True).rpartition(b"/")[2].decode()
    except (binascii.Error, ValueError):
        return ""


class SessionBindings(RequestFollower):
    """Remembers the endpoint of each session id, until the session is unused for `ttl` seconds.

    A session stays bound while its endpoint is among the candidates, even if a request goes elsewhere. If it is not, the
    session moves to the endpoint that its request goes to. Ids are kept as digests of a fixed size, under a random `key`.
    """

    def __init__(
        self,
        sources: Sequence[SessionId],
        ttl: float = DEFAULT_TTL,
        key: bytes = b"",
        most: int = MAX_SESSIONS,
    ) -> None:
        self._sources = tuple(sources)
        self._ttl = ttl
        self._key = key
        self._most = most
        self._bound: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """By digest: the id of the endpoint, and the time of the last use. In the order of that time."""
        self._session: bytes | None = None
        """Of the request that is being scheduled: a pick is atomic, from `prepare` to `picked`."""
        self._absent = False
        """Whether that request's session is bound to an endpoint that is no candidate."""
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._bound)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self._session = self._digest(request.headers)
        self._absent = False
        self._now = pool.now
        self._expire()

    def find(self, request: InferenceRequest, pool: EndpointPool) -> int | None:
        bound = None if self._session is None else self._bound.get(self._session)
        if bound is None:
            return None
        row = row_of(bound[0], pool)
        self._absent = row is None
        return row

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        session, self._session = self._session, None
        if session is None or not endpoints:
            return
        name = endpoints[0].id
        bound = self._bound.get(session)
        if bound is not None and bound[0] != name and not self._absent:
            return
        self._bound[session] = (name, self._now)
        self._bound.move_to_end(session)
        if len(self._bound) > self._most:
            self._bound.popitem(last=False)

    def _digest(self, headers: Mapping[str, str]) -> bytes | None:
        for source in self._sources:
            if session := source.read(headers):
                text = session.encode(errors="replace")
                return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=self._key).digest()
        return None

    def _expire(self) -> None:
        while self._bound:
            oldest = next(iter(self._bound))
            if self._now - self._bound[oldest][1] <= self._ttl:
                return
            del self._bound[oldest]
