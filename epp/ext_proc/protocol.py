"""Reads and writes the messages of the Gateway API Inference Extension's endpoint picker protocol: 1.0.0, 0.3.0, 2025-02."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.ext_proc.response_body import ResponseHead
from epp.outliers.settings import Failure
from epp.request.control_headers import (
    DESTINATION,
    DROPPED_REASON,
    FALLBACK,
    MOST_TEXT,
    PREFILL_FALLBACK,
    REQUEST_ID,
    SCORES,
    SERVED,
    SUBSET,
    is_control_header,
)
from epp.request.rejection import Rejection, UnreadableError
from epp.request.subset import MAX_DESTINATIONS, Subset, too_many_destinations
from epp.wire.messages.ext_proc_pb2 import (
    CommonResponse,
    HeaderMap,
    HeaderMutation,
    HeaderValue,
    HeaderValueOption,
    Metadata,
    ProcessingResponse,
)

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The gRPC service that Envoy calls, and whose health it checks."""

METADATA_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"


def parse_subset(metadata: Metadata) -> Subset | None:
    """The subset hint: a list, or a string with commas. None if the key is absent: the whole pool. Raises UnreadableError."""
    value = _field(metadata, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    if not value.HasField("list_value"):
        return Subset.of(_strings((value,)))
    values = value.list_value.values
    if len(values) > MAX_DESTINATIONS:
        raise too_many_destinations()
    return Subset.of(_strings(values))


def parse_served(metadata: Metadata) -> str | None:
    """The destination that served the request, as the data plane wrote it."""
    value = _field(metadata, METADATA_NAMESPACE, SERVED)
    return value.string_value or None if value is not None else None


def _field(metadata: Metadata, namespace: str, key: str) -> Value | None:
    if namespace not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[namespace].fields
    return fields.get(key)


def _strings(values: Iterable[Value]) -> Iterator[str]:
    return (value.string_value for value in values if value.HasField("string_value"))


def read_headers(headers: HeaderMap) -> tuple[dict[str, str], tuple[str, ...]]:
    """The headers by lower-case name, the first of repeated ones; and the names of control headers among them.

    Raises UnreadableError, or `Rejection` 431 if there are too many.
    """
    if len(headers.headers) > _MAX_FIELDS:
        code, message = (
            "request_header_fields_too_large",
            f"the request has more than {_MAX_FIELDS} header fields",
        )
        raise Rejection(431, code, message)
    seen: dict[str, str] = {}
    controls: tuple[str, ...] = ()
    for header in headers.headers:
        name, value, control = _header_cache.get(header) or _parse_header(header)
        if name not in seen:
            seen[name] = value
            if control:
                controls = (*controls, name)
    return seen, controls


_MAX_FIELDS: Final = 10_000
"""Header fields of a request. Envoy accepts 100 by default."""


def _parse_header(header: bytes) -> tuple[str, str, bool]:
    """The name in lower case, the value (`raw_value` if set, else `value`), and whether it is a control header."""
    try:
        read = HeaderValue.FromString(header)
    except DecodeError:
        raise UnreadableError("a header that cannot be read; expected Envoy's ext_proc v3") from None
    raw = read.raw_value
    name = read.key.lower()
    parsed = name, raw.decode(errors="replace") if raw else read.value, is_control_header(name)
    if len(header) <= _MAX_CACHED_BYTES:
        if len(_header_cache) >= _MAX_CACHED:
            _header_cache.clear()
        _header_cache[header] = parsed
    return parsed


_MAX_CACHED: Final = 1024
_MAX_CACHED_BYTES: Final = 256
"""Bytes of a header that is cached."""
# bounded: _MAX_CACHED headers of at most _MAX_CACHED_BYTES bytes
_header_cache: Final[dict[bytes, tuple[str, str, bool]]] = {}
"""Parsed headers by their bytes: most headers are the same in every request."""


def read_status(headers: HeaderMap) -> int | None:
    """The status of a response; None if it is absent or malformed. Raises UnreadableError."""
    for header in islice(headers.headers, _MAX_FIELDS):
        # pseudo-headers come first (RFC 9113 section 8.3)
        name, text, _ = _header_cache.get(header) or _parse_header(header)
        if name == ":status":
            return int(text) if _STATUS.fullmatch(text) else None
    return None


_STATUS: Final = re.compile("[0-9]{3}")


def read_failure(headers: HeaderMap) -> Failure | None:
    """Why the data plane answers in place of a worker; None: a worker answers. Raises UnreadableError.

    Our configuration of Envoy says so in `proxy-status`. Otherwise Envoy's own answer is a 503 or 504 in plain text without
    what a server's answer has here: Envoy adds `date` and `server` to its own only after ext_proc.
    """
    found = read_response_head(headers).headers
    told = found.get(PROXY_STATUS)
    if told is not None:
        return PROXY_ERRORS.get(told.partition("error=")[2].partition(";")[0].strip())
    is_local = found.get("content-type") == "text/plain" and _OF_SERVERS.isdisjoint(found)
    return _LOCAL_STATUS.get(found.get(":status", "")) if is_local else None


def read_attempts(headers: HeaderMap) -> int | None:
    """How many attempts the data plane made, if it says so. Raises UnreadableError.

    https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter#x-envoy-attempt-count
    """
    text = read_response_head(headers).headers.get("x-envoy-attempt-count", "")
    return int(text) if _ATTEMPTS.fullmatch(text) else None


def read_fallback(headers: HeaderMap) -> str:
    """Why the decode worker computed a prompt that a prefill worker should have; empty: it did not. Raises UnreadableError."""
    return read_response_head(headers).headers.get(PREFILL_FALLBACK, "")


_ATTEMPTS: Final = re.compile("[0-9]{1,3}")
PROXY_STATUS: Final = "proxy-status"
PROXY_ERRORS: Final[Mapping[str, Failure]] = MappingProxyType(
    {
        "destination_unavailable": Failure.CONNECT,
        "connection_terminated": Failure.RESET,
        "http_response_timeout": Failure.TIMEOUT,
    }
)
"""Proxy error types of RFC 9209 section 2.3."""
_LOCAL_STATUS: Final[Mapping[str, Failure]] = MappingProxyType(
    {"503": Failure.CONNECT, "504": Failure.TIMEOUT}
)
_OF_SERVERS: Final = frozenset({"date", "server", "x-envoy-upstream-service-time", "x-envoy-overloaded"})
"""`date`: RFC 9110 section 6.6.1. Envoy adds the third to each answer of a worker, and the fourth to its own when a circuit
breaker is open."""


def read_response_head(headers: HeaderMap) -> ResponseHead:
    """The start of a response, for readers of its body. Raises UnreadableError."""
    fields: dict[str, str] = {}
    for header in islice(headers.headers, _MAX_FIELDS):
        name, value, _ = _header_cache.get(header) or _parse_header(header)
        fields.setdefault(name, value)
    status = fields.get(":status", "")
    return ResponseHead(int(status) if _STATUS.fullmatch(status) else None, fields)


def is_upgrade(headers: Mapping[str, str]) -> bool:
    """Whether a tunnel follows the headers instead of a body (RFC 9110 sections 7.8, 9.3.6); Envoy never sends its end."""
    return headers.get(":method") == "CONNECT" or "upgrade" in headers


def routing(
    destinations: Sequence[str],
    version: ProtocolVersion,
    controls: Sequence[str],
    headers: Mapping[str, str] = _NO_HEADERS,
) -> tuple[CommonResponse, Struct]:
    """The header mutation and the dynamic metadata that route a request.

    `destinations`: the choice and its fallbacks in order; `controls`: the client's control headers, which are removed. Only
    the destination header and `headers` are set; all other headers reach the worker unchanged. The destination is the same
    in the header and the metadata, as protocol 1.0.0 demands.
    """
    value = ",".join(destinations) if version is ProtocolVersion.V1_0 else destinations[0]
    common = CommonResponse(clear_route_cache=True)
    for name, text in {DESTINATION: value, **headers}.items():
        set_header(common.header_mutation, name, text)
    # a header is either set or removed, so the order in which the data plane applies both does not matter
    common.header_mutation.remove_headers.extend([name for name in controls if name not in headers])
    metadata = Struct()
    fields = metadata.fields[METADATA_NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = value
    if version is ProtocolVersion.V0_3 and len(destinations) > 1:
        fields[FALLBACK].string_value = destinations[1]
    return common, metadata


def add_scores(metadata: Struct, scores: Mapping[str, float]) -> None:
    """Add the score of each candidate to the dynamic metadata, in the format of the Go picker."""
    fields = metadata.fields[METADATA_NAMESPACE].struct_value.fields[SCORES].struct_value.fields
    for destination, score in scores.items():
        fields[destination].number_value = score


def immediate(rejection: Rejection, chance: float = 0.0, request_id: str = "") -> ProcessingResponse:
    """The ImmediateResponse of a rejection: OpenAI-style JSON, `Retry-After` in whole seconds (RFC 9110 section 10.2.3).

    `chance`: from 0 to 1, where in once to twice that time; clients that were refused together come back apart.
    `request_id`: as for `immediate_json`.
    """
    error = {
        "message": rejection.message,
        "type": _error_type(rejection.status),
        "param": None,
        "code": rejection.code,
    }
    headers: dict[str, str] = {}
    if rejection.retry_after is not None:
        least = max(1, math.ceil(rejection.retry_after))
        headers["retry-after"] = str(least + min(least, int(chance * (least + 1))))
    if rejection.reason is not None:
        headers[DROPPED_REASON] = rejection.reason
    body = json.dumps({"error": error}).encode()
    details = rejection.reason or rejection.code
    return immediate_json(rejection.status, details, body, headers, request_id=request_id)


def immediate_json(
    status: int, details: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS, *, request_id: str = ""
) -> ProcessingResponse:
    """An ImmediateResponse with a JSON body. `details`: for the data plane's access log.

    `request_id`: as it came; the answer tells it as far as a decision keeps it, or not at all if it is not printable ASCII.
    """
    answer = ProcessingResponse()
    response = answer.immediate_response
    response.status.code = status
    response.details = details
    response.body = body
    for name, text in {"content-type": "application/json", **headers}.items():
        set_header(response.headers, name, text)
    told = request_id[:MOST_TEXT]
    if told.isascii() and told.isprintable() and told:
        set_header(response.headers, REQUEST_ID, told)
    return answer


def set_header(mutation: HeaderMutation, name: str, value: str) -> None:
    """Let the mutation write that header over any that is there."""
    option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    option.header.key = name
    option.header.raw_value = value.encode()


def _error_type(status: int) -> str:
    """The `type` of an OpenAI error object."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
