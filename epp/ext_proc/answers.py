"""The picker's answers as bytes on the wire: what is always the same is serialised once.

A streamed body is put into its messages by hand, so that its bytes need not be copied; the rest is left to protobuf.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from epp.ext_proc import length_delimited as delimited
from epp.ext_proc import protocol
from epp.ext_proc.exchange_settings import ProtocolVersion
from epp.request.body import LARGE_PIECE, SMALL_PIECE, Buffer
from epp.request.control_headers import CLIENT_HEADERS
from epp.request.rejection import Rejection
from epp.scheduling.pick import Pick
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse

CHUNK: Final = 62_000
"""Bytes in one streamed body answer, as the Go picker sends them."""

Answer: TypeAlias = bytes | list[Buffer]
"""One message, whole or in pieces."""
RoutedKind: TypeAlias = Literal["request_headers", "request_body"]
BodyKind: TypeAlias = Literal["request_body", "response_body"]


def picked(pick: Pick, version: ProtocolVersion, controls: tuple[str, ...], kind: RoutedKind) -> bytes:
    """Where a pick sends a request that came with these control headers, and how the candidates were scored where it tells that."""
    destinations = tuple([endpoint.destination for endpoint in pick.endpoints])
    if pick.headers:
        answer = route(destinations, version, controls, kind, pick.headers)
    else:
        usual = not controls or CLIENT_HEADERS.issuperset(controls)
        answer = (cached_route if usual else route)(destinations, version, controls, kind)
    scores = pick.request.scores
    return answer if scores is None else with_scores(answer, scores)


def route(
    destinations: tuple[str, ...],
    version: ProtocolVersion,
    controls: tuple[str, ...],
    kind: RoutedKind,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Where the request goes: `protocol.routing`, as the answer to the headers or to a buffered body."""
    common, metadata = protocol.routing(destinations, version, controls, headers or {})
    answer = ProcessingResponse(dynamic_metadata=metadata)
    getattr(answer, kind).response.CopyFrom(common)
    return answer.SerializeToString()


cached_route: Final = lru_cache(maxsize=8192)(route)
"""The same, remembered: for names that no client can invent."""


def with_scores(routed: bytes, scores: Mapping[str, float]) -> bytes:
    """The answer of `cached_route` that also says how each candidate was scored."""
    answer = ProcessingResponse.FromString(routed)
    protocol.add_scores(answer.dynamic_metadata, scores)
    return answer.SerializeToString()


@lru_cache
def unchanged(kind: str) -> bytes:
    """The empty answer, "go on as it is", to a message of that kind."""
    answer = ProcessingResponse()
    getattr(answer, kind).SetInParent()
    return answer.SerializeToString()


def immediate(rejection: Rejection) -> bytes:
    """The ImmediateResponse for a rejection."""
    return protocol.immediate(rejection).SerializeToString()


def streamed(kind: BodyKind, pieces: Sequence[Buffer], *, end_of_stream: bool) -> list[Answer]:
    """FULL_DUPLEX_STREAMED: a body byte for byte, at most CHUNK bytes an answer; an empty one is one empty answer.

    Only pieces that are small, or larger than LARGEST, are copied.
    """
    size = sum(map(len, pieces))
    if size < SMALL_PIECE:
        return [
            b"".join(
                (_message_head(kind, size, end_of_stream), *pieces, _END_OF_STREAM if end_of_stream else b"")
            )
        ]
    chunks = _split(pieces)
    last = len(chunks) - 1
    return [_answer(kind, chunk, end_of_stream and at == last) for at, chunk in enumerate(chunks)]


def to_bytes(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else b"".join(answer)


def _split(pieces: Sequence[Buffer]) -> list[list[Buffer]]:
    """Pieces of a body as they go into one answer after the other."""
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
"""StreamedBodyResponse.end_of_stream = true, which follows the body."""
_FIELDS: Final = {"request_body": 3, "response_body": 4}


@lru_cache(maxsize=4096)
def _message_head(kind: BodyKind, size: int, end_of_stream: bool) -> bytes:
    """What stands before `size` bytes of a body in their message: for each level its field and its length."""
    start = (
        delimited.field_head(1, size) if size else b""
    )  # StreamedBodyResponse.body; an empty one is left out
    end = len(_END_OF_STREAM) if end_of_stream else 0
    for field in (3, 3, 1, _FIELDS[kind]):  # streamed_response, body_mutation, response, the kind itself
        start = delimited.field_head(field, len(start) + size + end) + start
    return start
