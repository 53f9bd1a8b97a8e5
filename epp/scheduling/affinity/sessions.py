"""Reads the session of a request from its headers, and finds the endpoint of a session. Pure.

A session's endpoint is named by a token that the client sends back, or remembered by session id. Both are foreign bytes: a token
or an id only chooses among the endpoints that may serve the request. Names, order of headers and behaviour: llm-d-router,
plugins agentidentity, sessionid, sessionaffinity and scheduling/util/sessionaffinity.
"""

import binascii
import hashlib
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from pydantic import Field, model_validator

from epp.endpoints.endpoint import Endpoint, EndpointPool
from epp.plugins.declaration import Role, only_parameters
from epp.plugins.section import HeaderName, Section
from epp.request.inference_request import InferenceRequest
from epp.scheduling.pairing import COMPUTED_AT
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import RequestFollower

DEFAULT_HEADER: Final = "x-session-id"
AGENT_HEADERS: Final = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""The session headers of Claude Code, OpenCode and Codex; the first that a request has counts."""
_MAX_COOKIES: Final = 16 * 1024
"""Characters of a cookie header; a longer one is not read. Browsers send at most 4 KiB for each cookie (RFC 6265 6.1)."""


SessionId: TypeAlias = Callable[[Mapping[str, str]], str]
"""Reads the session id from one place of a request's headers, whose names are in lower case; empty: there is none."""


def from_header(names: Sequence[str], headers: Mapping[str, str]) -> str:
    """The first of these headers that the request has."""
    return next((value for name in names if (value := headers.get(name))), "").strip()


BY_DEFAULT_HEADER: Final[SessionId] = partial(from_header, (DEFAULT_HEADER,))


def from_cookie(name: str, headers: Mapping[str, str]) -> str:
    cookies = headers.get("cookie", "")
    if len(cookies) > _MAX_COOKIES:
        return ""
    # bounded: _MAX_COOKIES characters
    pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
    return next((value.strip() for key, equals, value in pairs if equals and key == name), "")


class SessionIdProducerParameters(Section):
    header_name: HeaderName = ""
    """The header with the id of the session; this or `cookieName`."""
    cookie_name: str = ""
    """The cookie with it."""

    @model_validator(mode="after")
    def _check_one(self) -> "SessionIdProducerParameters":
        if bool(self.header_name) == bool(self.cookie_name.strip()):
            raise ValueError("a session id comes from headerName or from cookieName; give one of them")
        return self

    def session_id(self) -> SessionId:
        header, cookie = self.header_name, self.cookie_name.strip()
        return partial(from_header, (header,)) if header else partial(from_cookie, cookie)


class AgentIdentityParameters(Section):
    additional_session_headers: list[HeaderName] = Field(default_factory=list)
    """Headers that count before the known ones."""

    @property
    def headers(self) -> tuple[str, ...]:
        return (*filter(None, self.additional_session_headers), *AGENT_HEADERS)


SESSION_ID_PRODUCER: Final = only_parameters(
    "session-id-producer", Role.PRODUCER, SessionIdProducerParameters
)
AGENT_IDENTITY: Final = only_parameters("agent-identity", Role.REQUEST_HEADERS, AgentIdentityParameters)


TOKEN_HEADER: Final = "x-session-token"  # noqa: S105  # a header's name
_MAX_TOKEN: Final = 1024
"""Characters of a token: a Pod's name and namespace have 253 and 63 at most."""
MAX_SESSIONS: Final = 100_000
"""Sessions that are remembered, about 25 MB; the one that was used longest ago is forgotten first."""
DEFAULT_TTL: Final = 300.0
"""Seconds for which a session is remembered after its last request."""
_DIGEST_BYTES: Final = 16


def row_of(name: str, pool: EndpointPool) -> int | None:
    """The row of the endpoint with that id."""
    return next((row for row, endpoint in enumerate(pool.endpoints) if endpoint.id == name), None)


class EncodedEndpointHeader:
    """The client sends back the token that its last answer had: base64 of `namespace/name` of the endpoint.

    The name decides alone: a token of a Go picker counts whatever it takes for the namespace. `header` in lower case. `helper`:
    the role of the one that is kept, if it is not the endpoint that answers.
    """

    def __init__(self, header: str = TOKEN_HEADER, helper: str = "") -> None:
        self.header = header
        self.helper = helper

    def find(self, request: InferenceRequest, pool: EndpointPool) -> int | None:
        """The row of the session's endpoint; None: it has none yet, or that is not in the pool."""
        token = request.headers.get(self.header)
        name = _decode(token) if token else ""
        return row_of(name, pool) if name else None

    def response_headers(self, pick: Pick, served: str | None) -> Mapping[str, str]:
        """The token of the endpoint that answers, or of the helper."""
        endpoints = pick.helpers.get(self.helper, ()) if self.helper else pick.in_flight_at
        return {self.header: token_of(endpoints[0])} if endpoints else {}


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
    `of_prefill`: the endpoint is the helper that computes the prompt, and without one the session stays as it is.
    """

    def __init__(
        self,
        sources: Sequence[SessionId],
        ttl: float = DEFAULT_TTL,
        key: bytes = b"",
        most: int = MAX_SESSIONS,
        *,
        of_prefill: bool = False,
    ) -> None:
        self._of_prefill = of_prefill
        self._sources = tuple(sources)
        self._ttl = ttl
        self._key = key
        self._most = most
        self._bound: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """By digest: the id of the endpoint, and the time of the last use. In the order of that time."""
        self._session: bytes | None = None
        """The session of the request being scheduled: a pick is atomic, from `prepare` to `picked`."""
        self._found: bool | None = None
        """Whether the endpoint of that request's session is a candidate of any profile; None: nobody asked."""
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._bound)

    def prepare(self, request: InferenceRequest, pool: EndpointPool) -> None:
        self._session = self._digest(request.headers)
        self._found = None
        self._now = pool.now
        self._expire()

    def find(self, request: InferenceRequest, pool: EndpointPool) -> int | None:
        bound = None if self._session is None else self._bound.get(self._session)
        if bound is None:
            return None
        row = row_of(bound[0], pool)
        self._found = self._found or row is not None
        return row

    def picked(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        session, self._session = self._session, None
        kept = endpoints[:1]
        if self._of_prefill:
            computed_at = COMPUTED_AT.of(request)
            kept = [one for one in endpoints if one.key == computed_at]
        if session is None or not kept:
            return
        name = kept[0].id
        bound = self._bound.get(session)
        if bound is not None and bound[0] != name and self._found is not False:
            return
        self._bound[session] = (name, self._now)
        self._bound.move_to_end(session)
        if len(self._bound) > self._most:
            self._bound.popitem(last=False)

    def _digest(self, headers: Mapping[str, str]) -> bytes | None:
        for source in self._sources:
            if session := source(headers):
                text = session.encode(errors="replace")
                return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=self._key).digest()
        return None

    def _expire(self) -> None:
        while self._bound:
            oldest = next(iter(self._bound))
            if self._now - self._bound[oldest][1] <= self._ttl:
                return
            del self._bound[oldest]


SessionStrategy: TypeAlias = EncodedEndpointHeader | SessionBindings
