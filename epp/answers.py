"""The picker's answers as bytes on the wire: what is always the same is serialised once.

A streamed body is put into its message by hand, so that its bytes are copied once; the rest is left to protobuf.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from epp import protocol
from epp.protocol import ProtocolVersion, Rejection
from epp.wire.messages.ext_proc_pb2 import ProcessingResponse

CHUNK: Final = 62_000
"""Bytes in one streamed body answer, as the Go picker sends them."""

BodyKind: TypeAlias = Literal["request_body", "response_body"]


@lru_cache(maxsize=8192)
def routing(
    destinations: tuple[str, ...],
    version: ProtocolVersion,
    sent: tuple[str, ...],
    kind: Literal["request_headers", "request_body"],
) -> bytes:
    """Where the request goes: `protocol.routing`, as the answer to the headers or to a buffered body.

    `sent`: those of `protocol.CONTROL_HEADERS` that the client sent.
    """
    common, metadata = protocol.routing(destinations, version, sent)
    answer = ProcessingResponse(dynamic_metadata=metadata)
    getattr(answer, kind).response.CopyFrom(common)
    return answer.SerializeToString()


def scored(routed: bytes, scores: Mapping[str, float]) -> bytes:
    """The answer of `routing` that also says how each candidate was scored."""
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


def streamed(kind: BodyKind, body: bytes, *, end_of_stream: bool) -> list[bytes]:
    """FULL_DUPLEX_STREAMED: a body byte for byte, in pieces of at most CHUNK bytes; an empty one is one empty piece."""
    if len(body) <= CHUNK:
        return [b"".join((_before(kind, len(body), end_of_stream), body, _END if end_of_stream else b""))]
    view = memoryview(body)
    answers = []
    for start in range(0, len(body), CHUNK):
        piece = view[start : start + CHUNK]
        last = end_of_stream and start + CHUNK >= len(body)
        answers.append(b"".join((_before(kind, len(piece), last), piece, _END if last else b"")))
    return answers


_END: Final = b"\x10\x01"
"""StreamedBodyResponse.end_of_stream = true, which follows the body."""
_FIELDS: Final = {"request_body": 3, "response_body": 4}


@lru_cache(maxsize=4096)
def _before(kind: BodyKind, size: int, end_of_stream: bool) -> bytes:
    """What stands before `size` bytes of a body in their message: for each level its field and its length."""
    start = _delimited(1, size) if size else b""  # StreamedBodyResponse.body; an empty one is left out
    end = len(_END) if end_of_stream else 0
    for field in (3, 3, 1, _FIELDS[kind]):  # streamed_response, body_mutation, response, the kind itself
        start = _delimited(field, len(start) + size + end) + start
    return start


def _delimited(field: int, length: int) -> bytes:
    """The head of a length-delimited field (protobuf encoding): its tag, its length as a varint."""
    out = bytearray([field << 3 | 2])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
