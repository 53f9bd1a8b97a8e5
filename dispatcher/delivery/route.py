"""Decides which path and headers of a request are sent to a target (pure).

Requests come from clients of the front door and from anyone who may write to the broker. They must not reach another path
or host than the operator allows, nor set headers on which the gateway bases authentication, fairness or priority.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, unquote

from dispatcher.broker.contract.message import Request

OBJECTIVE_HEADER = "x-llm-d-inference-objective"
FAIRNESS_ID_HEADER = "x-llm-d-inference-fairness-id"
REQUEST_ID_HEADER = "x-request-id"
IDEMPOTENCY_KEY_HEADER = "idempotency-key"
ATTEMPT_HEADER = "x-dispatch-attempt"
"""1 for the first attempt."""
TIMEOUT_HEADER = "x-envoy-upstream-rq-timeout-ms"
"""Envoy's header: overrides the route's timeout, in milliseconds, retries included."""

DEFAULT_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")

# Callers may set these. A list of what they may not is never complete: proxies, gateways, sidecars and workers obey headers
# such as x-prefiller-host-port (the address that llm-d's sidecar forwards to), x-original-url or x-http-method-override.
_CALLER_HEADERS = frozenset({"accept", "baggage", "content-type", "traceparent", "tracestate"})
_CALLER_PREFIX = "openai-"
# What belongs to the connection (RFC 9110, 7.6.1) or frames the message (RFC 9112, 6). A second content-length or a
# transfer-encoding from a caller would be request smuggling (RFC 9112, 11.2). The others are the operator's or ours.
_RESERVED_HEADERS = frozenset(
    {
        "authorization", "connection", "content-length", "cookie", "expect", "host", "http2-settings",
        "idempotency-key", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade", "x-request-id", "accept-encoding",
    }
)  # fmt: skip
_FRAMING_HEADERS = frozenset(
    {
        "connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_RESERVED_PREFIXES = ("x-llm-d-", "x-gateway-", "x-envoy-", "x-forwarded-", "x-dispatch-")
# Field names are tokens (RFC 9110, 5.6.2). Values have no control characters: CR and LF would begin a new header.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*(\?[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*)?")
_MAX_HEADERS = 64
_MAX_VALUE = 8192
_MAX_CACHED = 256
"""Characters of a path that is cached."""
_MAX_ID = 256
"""Characters of a tenant or an id; the picker takes no longer ones."""


class IllegalRequestError(ValueError):
    """The request must not be sent; the text says why and becomes its result."""


@dataclass(frozen=True, slots=True)
class Route:
    """The path and headers of the requests of one queue. `headers` are the operator's: no caller overrides them.

    `paths`: the paths below the base URL that callers may name; one that ends in "/" allows everything below it.
    `caller_headers`: names in lower case that callers may set beside those of OpenAI's API and of traces.
    """

    path: str = DEFAULT_PATHS[0]
    paths: Sequence[str] = DEFAULT_PATHS
    headers: Mapping[str, str] = field(default_factory=dict)
    caller_headers: Collection[str] = ()
    objective: str = ""
    timeout_header: str = TIMEOUT_HEADER

    def request_path(self, requested: str = "") -> str:
        """The path and query to request: `requested`, or the route's own if it is empty. Raises IllegalRequestError."""
        path = requested or self.path
        bare = _decoded_path(path) if len(path) > _MAX_CACHED else _cached_decoded_path(path)
        if not any(_allows(allowed, bare) for allowed in self.paths):
            raise IllegalRequestError(
                f"the path {_quoted(path)} is not allowed; the target allows {', '.join(self.paths)}"
            )
        return path

    def request_headers(self, request: Request, attempt: int, timeout_ms: int) -> dict[str, str]:
        """All headers except those of the connection, names in lower case; raises IllegalRequestError.

        Headers that a caller may not set are dropped.
        """
        headers = {"content-type": "application/json"}
        headers.update(self.forwarded_headers(request.headers))
        headers.update(self.headers)
        if objective := self.objective or request.objective:
            headers[OBJECTIVE_HEADER] = _checked_value("the objective", objective)
        headers[FAIRNESS_ID_HEADER] = _header_safe(request.tenant)
        headers[REQUEST_ID_HEADER] = _header_safe(request.id)
        headers[IDEMPOTENCY_KEY_HEADER] = _header_safe(request.token)
        headers[ATTEMPT_HEADER] = str(attempt + 1)
        headers[self.timeout_header] = str(timeout_ms)
        return headers

    def forwards(self, name: str) -> bool:
        """Whether a caller may set the header."""
        lower = name.lower()
        return lower in _CALLER_HEADERS or lower.startswith(_CALLER_PREFIX) or lower in self.caller_headers

    def forwarded_headers(self, given: Mapping[str, str]) -> dict[str, str]:
        """The headers of `given` that a caller may set, names in lower case; IllegalRequestError if one is malformed."""
        if len(given) > _MAX_HEADERS:
            raise IllegalRequestError(f"there are {len(given)} headers, at most {_MAX_HEADERS} are allowed")
        kept = {}
        for name, value in given.items():
            if not _NAME.fullmatch(name):
                raise IllegalRequestError(f"{_quoted(name)} is not a header name")
            lower = name.lower()
            legal = _checked_value(f"the header {lower}", value)
            if self.forwards(lower):
                kept[lower] = legal
        return kept


def operator_headers(given: Mapping[str, str]) -> dict[str, str]:
    """The headers of a configuration, names in lower case; raises IllegalRequestError for those that frame a message."""
    kept = {}
    for name, value in given.items():
        lower = name.lower()
        if not _NAME.fullmatch(name) or lower in _FRAMING_HEADERS:
            raise IllegalRequestError(f"the header {_quoted(name)} cannot be set")
        kept[lower] = _checked_value(f"the header {lower}", value)
    return kept


def _decoded_path(path: str) -> str:
    """The percent-decoded path without its query; raises IllegalRequestError."""
    if not _PATH.fullmatch(path) or path.startswith("//"):
        raise IllegalRequestError(f"the path {_quoted(path)} is not an absolute path without a host")
    # Servers and proxies resolve "..", "//", "\\" and a second level of percent-encoding differently (RFC 3986, 5.2.4 and
    # 6.2.2). A path that any of them could read as another one is refused.
    bare = unquote(path.partition("?")[0])
    # bounded: the path of a message, whose size its queue bounds
    if "\\" in bare or "//" in bare or not bare.isprintable() or ".." in bare.split("/") or "%" in bare:
        raise IllegalRequestError(f"the path {_quoted(path)} could lead out of the target")
    return bare


# bounded: 256 paths of at most _MAX_CACHED characters
_cached_decoded_path = lru_cache(maxsize=256)(_decoded_path)


def _allows(allowed: str, path: str) -> bool:
    return path == allowed or (allowed.endswith("/") and path.startswith(allowed))


def allowed_caller_headers(names: Iterable[str]) -> frozenset[str]:
    """Names that a configuration lets callers set, in lower case; raises IllegalRequestError for those that it cannot."""
    allowed = frozenset(name.lower() for name in names)
    for name in sorted(allowed):
        if not _NAME.fullmatch(name) or name in _RESERVED_HEADERS or name.startswith(_RESERVED_PREFIXES):
            raise IllegalRequestError(f"no caller may set the header {_quoted(name)}")
    return allowed


def _checked_value(what: str, value: str) -> str:
    if len(value) > _MAX_VALUE:
        raise IllegalRequestError(f"{what} has {len(value)} characters, at most {_MAX_VALUE} fit in a header")
    if not _VALUE.fullmatch(value):
        raise IllegalRequestError(f"{what} has characters that no header may have")
    return value


def _header_safe(text: str) -> str:
    """Percent-encoded if it is not visible ASCII, so that every id and tenant fits in a header."""
    spelled = text if _PLAIN.fullmatch(text) else quote(text, safe="", errors="surrogatepass")
    return spelled[:_MAX_ID]


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")
