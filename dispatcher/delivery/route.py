"""What of a request may reach a target: its path, and the headers that a caller may set (pure)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, unquote

from dispatcher.broker.message import Request

OBJECTIVE_HEADER = "x-llm-d-inference-objective"
FAIRNESS_ID_HEADER = "x-llm-d-inference-fairness-id"
REQUEST_ID_HEADER = "x-request-id"
IDEMPOTENCY_KEY_HEADER = "idempotency-key"
ATTEMPT_HEADER = "x-dispatch-attempt"
"""1 for the first time that a request is sent."""
TIMEOUT_HEADER = "x-envoy-upstream-rq-timeout-ms"
"""Envoy's header: milliseconds that are left for the answer."""

DEFAULT_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")

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
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"[\x21-\x7e]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PATH = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*(\?[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*)?")
_MAX_HEADERS = 64
_MAX_VALUE = 8192
_MAX_CACHED = 256
"""Characters of a path whose judgement is remembered."""
_MAX_ID = 256
"""Characters of a tenant or an id; the picker takes no longer ones."""


class IllegalRequestError(ValueError):
    """The request must not be sent; the text says why."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the requests of one queue go. `headers` are the operator's: no caller overrides them.

    `paths`: what may be asked for below the base URL; one that ends in "/" allows everything below it.
    """

    path: str = DEFAULT_PATHS[0]
    paths: Sequence[str] = DEFAULT_PATHS
    headers: Mapping[str, str] = field(default_factory=dict)
    objective: str = ""
    timeout_header: str = TIMEOUT_HEADER

    def request_path(self, asked: str = "") -> str:
        """The path and query to ask for, the route's own where a request names none; raises IllegalRequestError."""
        path = asked or self.path
        bare = _decoded_path(path) if len(path) > _MAX_CACHED else _cached_decoded_path(path)
        if not any(_allows(allowed, bare) for allowed in self.paths):
            raise IllegalRequestError(
                f"the path {_quoted(path)} is not allowed; the target allows {', '.join(self.paths)}"
            )
        return path

    def request_headers(self, request: Request, attempt: int, timeout_ms: int) -> dict[str, str]:
        """All headers but those of the connection, names in lower case; raises IllegalRequestError.

        What only an operator may say (objective, fairness, authorization, forwarding) is dropped from a caller's.
        """
        headers = {"content-type": "application/json"}
        headers.update(caller_headers(request.headers))
        headers.update(self.headers)
        if objective := self.objective or request.objective:
            headers[OBJECTIVE_HEADER] = _checked_value("the objective", objective)
        headers[FAIRNESS_ID_HEADER] = _header_safe(request.tenant)
        headers[REQUEST_ID_HEADER] = _header_safe(request.id)
        headers[IDEMPOTENCY_KEY_HEADER] = _header_safe(request.token)
        headers[ATTEMPT_HEADER] = str(attempt + 1)
        headers[self.timeout_header] = str(timeout_ms)
        return headers


def operator_headers(given: Mapping[str, str]) -> dict[str, str]:
    """The headers of a configuration, names in lower case; raises IllegalRequestError for those HTTP itself sets."""
    kept = {}
    for name, value in given.items():
        lower = name.lower()
        if not _NAME.fullmatch(name) or lower in _FRAMING_HEADERS:
            raise IllegalRequestError(f"the header {_quoted(name)} cannot be set")
        kept[lower] = _checked_value(f"the header {lower}", value)
    return kept


def _decoded_path(path: str) -> str:
    """The path as a target reads it, without its query; raises IllegalRequestError."""
    if not _PATH.fullmatch(path) or path.startswith("//"):
        raise IllegalRequestError(f"the path {_quoted(path)} is not an absolute path without a host")
    bare = unquote(path.partition("?")[0])
    if "\\" in bare or "//" in bare or not bare.isprintable() or ".." in bare.split("/") or "%" in bare:
        raise IllegalRequestError(f"the path {_quoted(path)} could lead out of the target")
    return bare


_cached_decoded_path = lru_cache(maxsize=256)(_decoded_path)


def _allows(allowed: str, path: str) -> bool:
    return path == allowed or (allowed.endswith("/") and path.startswith(allowed))


def caller_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Those of `given` that a caller may set, names in lower case; raises IllegalRequestError for illegal ones."""
    if len(given) > _MAX_HEADERS:
        raise IllegalRequestError(f"there are {len(given)} headers, at most {_MAX_HEADERS} are allowed")
    kept = {}
    for name, value in given.items():
        if not _NAME.fullmatch(name):
            raise IllegalRequestError(f"{_quoted(name)} is no name of a header")
        lower = name.lower()
        legal = _checked_value(f"the header {lower}", value)
        if lower not in _RESERVED_HEADERS and not lower.startswith(_RESERVED_PREFIXES):
            kept[lower] = legal
    return kept


def _checked_value(what: str, value: str) -> str:
    if len(value) > _MAX_VALUE:
        raise IllegalRequestError(f"{what} has {len(value)} characters, at most {_MAX_VALUE} fit in a header")
    if not _VALUE.fullmatch(value):
        raise IllegalRequestError(f"{what} has characters that no header may have")
    return value


def _header_safe(text: str) -> str:
    """For a header: percent-encoded where it is not plain ASCII, so that every id and tenant can be sent."""
    spelled = text if _PLAIN.fullmatch(text) else quote(text, safe="", errors="surrogatepass")
    return spelled[:_MAX_ID]


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")
