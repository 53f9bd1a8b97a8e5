"""Names and rules of the endpoint picker protocol of the Gateway API Inference Extension: 1.0.0, 0.3.0, 2025-02."""

import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Final

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from epp.ext_proc.control_headers import (
    DESTINATION,
    DROPPED_REASON,
    FALLBACK,
    SCORES,
    SERVED,
    SUBSET,
    is_control,
)
from epp.wire.messages.ext_proc_pb2 import (
    CommonResponse,
    HeaderMap,
    HeaderValue,
    HeaderValueOption,
    Metadata,
    ProcessingResponse,
)

EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The gRPC service that Envoy calls and asks the health of."""

METADATA_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"


class UnreadableError(Exception):
    """A message of the data plane that cannot be read: its doing, not ours; gRPC status 13 (INTERNAL)."""


class ProtocolVersion(StrEnum):
    """The versions of the protocol that differ on the wire."""

    V1_0 = "1.0.0"
    V0_3 = "0.3.0"
    FEBRUARY_2025 = "2025-02"


class Rejection(Exception):  # noqa: N818  # an answer to the client rather than a fault
    """An answer that is not a pick; the client sees it as an OpenAI-style error.

    `reason` is the value of `x-llm-d-request-dropped-reason`, `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Subset:
    """The destinations a pick must come from; one that is empty allows nothing (protocol 1.0.0).

    Members are (address, port) with the address as `ipaddress` writes it; port None means every port.
    """

    members: frozenset[tuple[str, int | None]] = frozenset()

    @classmethod
    def of(cls, destinations: Iterable[str]) -> "Subset":
        """Read `ip`, `ip:port`, `[ip6]:port`; one item may hold several, separated by commas. Raises UnreadableError."""
        members: set[tuple[str, int | None]] = set()
        left = _MOST_DESTINATIONS
        for item in destinations:
            left -= item.count(",") + 1
            if left < 0:
                raise _too_many()
            for word in item.split(","):
                if found := _IPV4.fullmatch(word):
                    members.add((found[1], int(found[2]) if found[2] else None))
                elif word := word.strip():
                    members.add(
                        _destination(word, _canonical if len(members) < _READ_AS_ADDRESSES else _literal)
                    )
        return cls(frozenset(members))

    def allows(self, address: str, port: int) -> bool:
        """Whether that address and port may be picked."""
        host = _canonical(address)
        return (host, port) in self.members or (host, None) in self.members


_MOST_DESTINATIONS: Final = 16_384
_READ_AS_ADDRESSES: Final = 2048
"""Of more destinations those that are no plain IPv4 count as they are written: to read an IPv6 address takes 20 µs."""
_LONGEST_HOST: Final = 255
"""Characters of a host's name (RFC 1035 2.3.4); nothing is there where one is longer."""
_LONGEST_ADDRESS: Final = 64
"""Characters of what can be an IP address, however it is written."""
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = re.compile(rf"({_OCTET}(?:\.{_OCTET}){{3}})(?::([0-9]{{1,5}}))?")
"""As `ipaddress` writes it, which takes seven times as long to find that out."""


def parse_subset(metadata: Metadata) -> Subset | None:
    """Read the subset hint: a list or a comma string. None when the key is absent: the whole pool. Raises UnreadableError."""
    value = _field(metadata, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    if not value.HasField("list_value"):
        return Subset.of(_strings((value,)))
    values = value.list_value.values
    if len(values) > _MOST_DESTINATIONS:
        raise _too_many()
    return Subset.of(_strings(values))


def _too_many() -> UnreadableError:
    return UnreadableError(f"a list of more than {_MOST_DESTINATIONS} destinations")


def parse_served(metadata: Metadata) -> str | None:
    """The destination that the data plane says has served the request, as it wrote it."""
    value = _field(metadata, METADATA_NAMESPACE, SERVED)
    return value.string_value or None if value is not None else None


def _field(metadata: Metadata, namespace: str, key: str) -> Value | None:
    if namespace not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[namespace].fields
    return fields.get(key)


def _strings(values: Iterable[Value]) -> Iterator[str]:
    return (value.string_value for value in values if value.HasField("string_value"))


def _destination(text: str, host_of: Callable[[str], str]) -> tuple[str, int | None]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
        rest = colon + port
    else:
        host, rest = text, ""
    return host_of(host), _port(rest) if rest else None


def _port(rest: str) -> int:
    """-1, which nothing listens on, when what follows the host is not a port."""
    port = rest.removeprefix(":")
    return int(port) if port != rest and re.fullmatch("[0-9]{1,5}", port) else -1


def _canonical(address: str) -> str:
    if len(address) <= _LONGEST_ADDRESS:
        return _remembered(address)
    return _literal(address)


def _literal(host: str) -> str:
    return host.lower() if len(host) <= _LONGEST_HOST else ""


@lru_cache(maxsize=8192)
def _remembered(address: str) -> str:
    """Short ones only: what strangers write is kept."""
    if ":" not in address:
        bare = address.strip("[]")
        return bare if _IPV4.fullmatch(bare) else address.lower()
    try:
        ip = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return address.lower()
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def read_headers(headers: HeaderMap) -> tuple[dict[str, str], tuple[str, ...]]:
    """Lower-cased names, of repeated names the first; beside them which are control headers. Raises UnreadableError,
    or `Rejection` where there are too many.
    """
    if len(headers.headers) > _MOST_FIELDS:
        code, message = (
            "request_header_fields_too_large",
            f"the request has more than {_MOST_FIELDS} header fields",
        )
        raise Rejection(431, code, message)
    seen: dict[str, str] = {}
    controls: tuple[str, ...] = ()
    for header in headers.headers:
        name, value, control = _known.get(header) or _header(header)
        if name not in seen:
            seen[name] = value
            if control:
                controls = (*controls, name)
    return seen, controls


_MOST_FIELDS: Final = 10_000
"""Header fields of a request. Envoy takes 100 unless it is told otherwise."""


def _header(header: bytes) -> tuple[str, str, bool]:
    """Its name in lower case; `raw_value` if there is one, else `value`; whether it is a control header."""
    try:
        read = HeaderValue.FromString(header)
    except DecodeError:
        raise UnreadableError(
            "a header that cannot be read: the data plane speaks another ext_proc"
        ) from None
    raw = read.raw_value
    name = read.key.lower()
    found = name, raw.decode(errors="replace") if raw else read.value, is_control(name)
    if len(header) <= _REMEMBERED_SIZE:
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[header] = found
    return found


_REMEMBERED: Final = 1024
_REMEMBERED_SIZE: Final = 256
"""Bytes up to which a header is remembered."""
_known: Final[dict[bytes, tuple[str, str, bool]]] = {}
"""Headers that were read: most are the same in request after request."""


def read_status(headers: HeaderMap) -> int | None:
    """The status of a response; None where there is none, or one that is no status. Raises UnreadableError."""
    for header in islice(headers.headers, _MOST_FIELDS):
        name, text, _ = _known.get(header) or _header(header)  # the first one, as all that begin with a colon
        if name == ":status":
            return int(text) if _STATUS.fullmatch(text) else None
    return None


_STATUS: Final = re.compile("[0-9]{3}")


def is_upgrade(headers: Mapping[str, str]) -> bool:
    """Whether what follows the headers is no body but a tunnel; Envoy never says that it ends (RFC 9110 7.8, 9.3.6)."""
    return headers.get(":method") == "CONNECT" or "upgrade" in headers


def routing(
    destinations: Sequence[str], version: ProtocolVersion, controls: Sequence[str]
) -> tuple[CommonResponse, Struct]:
    """The header mutation and the dynamic metadata that say where a request goes.

    `destinations` is the choice and its ordered fallbacks, `controls` the client's headers that must reach no worker. Only the
    destination header is set, so that every other one reaches it as it came; header and metadata are always equal (protocol 1.0.0).
    """
    value = ",".join(destinations) if version is ProtocolVersion.V1_0 else destinations[0]
    common = CommonResponse(clear_route_cache=True)
    option = common.header_mutation.set_headers.add(
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    )
    option.header.key = DESTINATION
    option.header.raw_value = value.encode()
    common.header_mutation.remove_headers.extend(controls)
    metadata = Struct()
    fields = metadata.fields[METADATA_NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = value
    if version is ProtocolVersion.V0_3 and len(destinations) > 1:
        fields[FALLBACK].string_value = destinations[1]
    return common, metadata


def add_scores(metadata: Struct, scores: Mapping[str, float]) -> None:
    """Say in the dynamic metadata how each candidate was scored, beside where the request goes (the Go picker's way)."""
    fields = metadata.fields[METADATA_NAMESPACE].struct_value.fields[SCORES].struct_value.fields
    for destination, score in scores.items():
        fields[destination].number_value = score


def immediate(rejection: Rejection) -> ProcessingResponse:
    """The ImmediateResponse for a rejection: OpenAI-style JSON, `Retry-After` in whole seconds (RFC 9110 10.2.3)."""
    answer = ProcessingResponse()
    response = answer.immediate_response
    response.status.code = rejection.status
    response.details = rejection.reason or rejection.code
    error = {
        "message": rejection.message,
        "type": _kind(rejection.status),
        "param": None,
        "code": rejection.code,
    }
    response.body = json.dumps({"error": error}).encode()
    headers = {"content-type": "application/json"}
    if rejection.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(rejection.retry_after)))
    if rejection.reason is not None:
        headers[DROPPED_REASON] = rejection.reason
    for name, text in headers.items():
        option = response.headers.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key = name
        option.header.raw_value = text.encode()
    return answer


def _kind(status: int) -> str:
    """The `type` of an OpenAI error object."""
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
