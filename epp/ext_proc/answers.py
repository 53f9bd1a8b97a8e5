"""Serialises the picker's answers; answers that repeat are serialised once.

Messages of a streamed body are encoded by hand around the pieces that came, since protobuf would copy each body once more.
Protobuf encodes everything else.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from adsum.tracing.trace_context import LENGTH, TRACEPARENT, TRACESTATE
from epp.ext_proc import protocol
from epp.ext_proc.access_log_entry import PICK_KEY, PICK_NAMESPACE
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.request.body import LARGE_PIECE, SMALL_PIECE, Buffer
from epp.request.control_headers import CLIENT_HEADERS
from epp.request.rejection import OwnAnswer, Rejection
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse

CHUNK: Final = 62_000
"""Bytes of a body in one answer, as in the Go picker; Envoy recommends at most 64 KB (processing_mode.proto)."""

Answer: TypeAlias = bytes | list[Buffer]
"""One serialised message, in one piece or in several."""
RoutedKind: TypeAlias = Literal["request_headers", "request_body"]
BodyKind: TypeAlias = Literal["request_body", "response_body"]


def picked(
    pick: Pick,
    version: ProtocolVersion,
    controls: tuple[str, ...],
    kind: RoutedKind,
    length: int | None = None,
) -> bytes:
    """The answer that routes a request by its pick, with the candidates' scores if the pick has them.

    `controls`: the control headers that came with the request, which are removed. `length`: the Content-Length of a body
    that changes; None: it does not change, or its client sent none.
    """
    destinations = tuple([endpoint.destination for endpoint in pick.endpoints])
    if length is not None:
        headers = {**pick.headers, "content-length": str(length)}
        answer = route(destinations, version, controls, kind, headers)
    elif pick.headers:
        answer = route(destinations, version, controls, kind, pick.headers)
    else:
        usual = not controls or CLIENT_HEADERS.issuperset(controls)
        if usual and len(destinations) > 1 and version is ProtocolVersion.V1_0:
            answer = route_to_list(destinations, controls, kind)
        else:
            answer = (cached_route if usual else route)(destinations, version, controls, kind)
    scores = pick.scores
    return answer if scores is None else with_scores(answer, scores)


def route(
    destinations: tuple[str, ...],
    version: ProtocolVersion,
    controls: tuple[str, ...],
    kind: RoutedKind,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """`protocol.routing` as the answer to the request headers or to a buffered body."""
    common, metadata = protocol.routing(destinations, version, controls, headers or {})
    answer = ProcessingResponse(dynamic_metadata=metadata)
    getattr(answer, kind).response.CopyFrom(common)
    return answer.SerializeToString()


# bounded: destinations of our endpoints
cached_route: Final = lru_cache(maxsize=8192)(route)
"""The same, cached: only for headers whose names clients cannot invent, or they would fill the cache."""


def route_to_list(destinations: tuple[str, ...], controls: tuple[str, ...], kind: RoutedKind) -> bytes:
    """The same for a choice and its fallbacks, for such headers too. Among many endpoints few lists come twice, so what is
    cached is the message around a list of that length."""
    listed = ",".join(destinations).encode()
    before, between, after = _list_parts(len(listed), controls, kind)
    return b"".join((before, listed, between, listed, after))


@lru_cache(maxsize=1024)
# bounded: lengths of lists of our endpoints, sets of known headers
def _list_parts(length: int, controls: tuple[str, ...], kind: RoutedKind) -> list[bytes]:
    listed = "\0" * length
    # bounded: our own message
    return route((listed,), ProtocolVersion.V1_0, controls, kind).split(listed.encode())


def with_trace(routed: bytes, kind: RoutedKind, traceparent: str, *, drops_state: bool) -> bytes:
    """The answer of `route` that also sets `traceparent`; `drops_state`: the `tracestate` that came is of no trace of ours.

    A message behind another one of its type is merged into it (https://protobuf.dev/programming-guides/encoding/#last-one-wins),
    so the cached answer stays as it is.
    """
    before, after = _trace_parts(kind)
    traced = b"".join((routed, before, traceparent.encode(), after))
    return traced + _without_state(kind) if drops_state else traced


@lru_cache
# bounded: the kinds of routing answers
def _trace_parts(kind: RoutedKind) -> tuple[bytes, bytes]:
    """The bytes before and after a `traceparent`, whose length is constant."""
    answer = ProcessingResponse()
    mutation = getattr(answer, kind).response.header_mutation
    protocol.set_header(mutation, TRACEPARENT, _PLACEHOLDER)
    before, _, after = answer.SerializeToString().partition(_PLACEHOLDER.encode())
    return before, after


_PLACEHOLDER: Final = "x" * LENGTH


@lru_cache
# bounded: the kinds of routing answers
def _without_state(kind: RoutedKind) -> bytes:
    answer = ProcessingResponse()
    getattr(answer, kind).response.header_mutation.remove_headers.append(TRACESTATE)
    return answer.SerializeToString()


def with_token(routed: bytes, token: str) -> bytes:
    """The answer of `route` with the pick's name for the log of the data plane; the names of all picks have one length.

    As above, the cached answer stays as it is. A namespace of its own, since of two equal keys in a map the last one counts.
    """
    return routed + _before_token(len(token)) + token.encode()


@lru_cache(maxsize=16)
# bounded: numbers
def _before_token(length: int) -> bytes:
    """The bytes before a token of that length, which ends the message."""
    answer = ProcessingResponse()
    fields = answer.dynamic_metadata.fields[PICK_NAMESPACE].struct_value.fields
    fields[PICK_KEY].string_value = "x" * length
    return answer.SerializeToString()[:-length]


def with_body(routed: bytes, body: bytes) -> bytes:
    """The answer of `route` to a buffered body, which becomes this one."""
    answer = ProcessingResponse.FromString(routed)
    answer.request_body.response.body_mutation.body = body
    return answer.SerializeToString()


def with_scores(routed: bytes, scores: Mapping[str, float]) -> bytes:
    """The answer of `route` with the score of each candidate in its dynamic metadata."""
    answer = ProcessingResponse.FromString(routed)
    protocol.add_scores(answer.dynamic_metadata, scores)
    return answer.SerializeToString()


@lru_cache
# bounded: the kinds of messages
def unchanged(kind: str) -> bytes:
    """The empty answer to a message of that kind: continue without a change."""
    answer = ProcessingResponse()
    getattr(answer, kind).SetInParent()
    return answer.SerializeToString()


def with_response_headers(answered: Answer, headers: Mapping[str, str]) -> bytes:
    """The answer to the response headers, which sets these too."""
    answer = ProcessingResponse.FromString(to_bytes(answered))
    for name, text in headers.items():
        protocol.set_header(answer.response_headers.response.header_mutation, name, text)
    return answer.SerializeToString()


@lru_cache
# bounded: the kinds of headers
def without_length(kind: Literal["response_headers"]) -> bytes:
    """The answer to headers whose body may get another length: their Content-Length is removed."""
    answer = ProcessingResponse()
    getattr(answer, kind).response.header_mutation.remove_headers.append("content-length")
    return answer.SerializeToString()


def replaced(kind: BodyKind, body: Buffer | None, *, with_length: bool) -> bytes:
    """Send other bytes for a body or a piece of it (BUFFERED, STREAMED), None: unchanged; with their Content-Length or not."""
    if body is None:
        return unchanged(kind)
    if body and not with_length:
        return b"".join((_message_head(kind, len(body), False, _REPLACED), body))
    answer = ProcessingResponse()
    common = getattr(answer, kind).response
    if body:
        common.body_mutation.body = bytes(body)
    else:
        common.body_mutation.clear_body = True
    if with_length:
        protocol.set_header(common.header_mutation, "content-length", str(len(body)))
    return answer.SerializeToString()


def immediate(rejection: Rejection, chance: float, request_id: str) -> bytes:
    """The serialised ImmediateResponse of a rejection."""
    return protocol.immediate(rejection, chance, request_id).SerializeToString()


def own(answer: OwnAnswer, request_id: str) -> bytes:
    """The serialised ImmediateResponse with the picker's own answer."""
    made = protocol.immediate_json(200, "answered_by_picker", answer.body, request_id=request_id)
    return made.SerializeToString()


def streamed(kind: BodyKind, pieces: Sequence[Buffer], *, end_of_stream: bool) -> list[Answer]:
    """Send a body back unchanged (FULL_DUPLEX_STREAMED), in answers of at most CHUNK bytes; an empty body is one answer.

    In this mode Envoy forwards the body that it gets back. Only pieces that are small, or larger than LARGE_PIECE, are
    copied.
    """
    size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
    if size < SMALL_PIECE:
        end = _END_OF_STREAM if end_of_stream else b""
        return [b"".join((_message_head(kind, size, end_of_stream), *pieces, end))]
    chunks = _split(pieces)
    last = len(chunks) - 1
    return [_answer(kind, chunk, end_of_stream and at == last) for at, chunk in enumerate(chunks)]


def to_bytes(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else b"".join(answer)


def _split(pieces: Sequence[Buffer]) -> list[list[Buffer]]:
    """Distribute the pieces of a body over answers."""
    chunk: list[Buffer] = []
    chunks, room = [chunk], CHUNK
    for piece in pieces:
        large = len(piece) > LARGE_PIECE
        rest = memoryview(piece)
        while len(rest) > room:
            chunk.append(bytes(rest[:room]) if large else rest[:room])
            rest = rest[room:]
            chunk = []
            chunks.append(chunk)
            room = CHUNK
        chunk.append(bytes(rest) if large else rest)
        room -= len(rest)
    return chunks


def _answer(kind: BodyKind, chunk: list[Buffer], ends: bool) -> Answer:
    size = sum(map(len, chunk))
    parts = [_message_head(kind, size, ends), *chunk]
    if ends:
        parts.append(_END_OF_STREAM)
    return parts if size > SMALL_PIECE * len(chunk) else b"".join(parts)


_END_OF_STREAM: Final = b"\x10\x01"
"""`StreamedBodyResponse.end_of_stream = true`, encoded; follows the body."""
_FIELDS: Final = {"request_body": 3, "response_body": 4}
_STREAMED: Final = (3, 3, 1)
"""The fields around a StreamedBodyResponse: streamed_response, body_mutation, response."""
_REPLACED: Final = (3, 1)
"""The fields around a BodyMutation: body_mutation, response."""


@lru_cache(maxsize=4096)
# bounded: numbers
def _message_head(
    kind: BodyKind, size: int, end_of_stream: bool, levels: tuple[int, ...] = _STREAMED
) -> bytes:
    """The bytes before `size` bytes of a body in their message: the field and the length of each level."""
    # `body` of either; proto3 leaves out an empty one
    start = field_head(1, size) if size else b""
    end = len(_END_OF_STREAM) if end_of_stream else 0
    for field in (*levels, _FIELDS[kind]):
        start = field_head(field, len(start) + size + end) + start
    return start


def field_head(field: int, length: int) -> bytes:
    """The tag of the field (wire type 2) and its length as a varint."""
    out = bytearray([field << 3 | 2])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
