"""Sends requests to a picker as Envoy does, over grpc.aio."""

import contextlib
from collections.abc import AsyncIterator, Mapping

import grpc
import grpc.aio

from epp.ext_proc.protocol import EXT_PROC
from epp.request.control_headers import DESTINATION
from epp.wire.messages.ext_proc_pb2 import (
    HeaderValue,
    Metadata,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
)

_LIMIT = 128 * 1024 * 1024
_TIMEOUT = 30.0
_CHUNK = 1024 * 1024


@contextlib.asynccontextmanager
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection that no other channel shares."""
    # gRPC's global subchannel pool would share one connection among all channels to an address
    options = (("grpc.max_send_message_length", _LIMIT), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(address, options=options) as opened:
        yield opened


async def send_request(
    opened: grpc.aio.Channel,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    context: Metadata | None = None,
) -> str:
    """Returns the destination of one request, its fallbacks behind it, or the status of a rejection, as `503`; raises AioRpcError."""
    said = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
    first = ProcessingRequest(metadata_context=context)
    fields = (
        HeaderValue(key=key, raw_value=value.encode()) for key, value in (said | dict(headers or {})).items()
    )
    first.request_headers.headers.headers.extend(field.SerializeToString() for field in fields)
    first.protocol_config.request_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    call = opened.stream_stream(
        f"/{EXT_PROC}/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )(timeout=_TIMEOUT)
    await call.write(first)
    for at in range(0, len(body) or 1, _CHUNK):
        piece = ProcessingRequest()
        piece.request_body.body = body[at : at + _CHUNK]
        piece.request_body.end_of_stream = at + _CHUNK >= len(body)
        await call.write(piece)
    answer = await call.read()
    call.cancel()
    assert isinstance(answer, ProcessingResponse), "the stream ended without an answer"
    return _destination(answer)


def _destination(answer: ProcessingResponse) -> str:
    if answer.HasField("immediate_response"):
        return str(answer.immediate_response.status.code)
    for option in answer.request_headers.response.header_mutation.set_headers:
        if option.header.key == DESTINATION:
            return option.header.raw_value.decode()
    return "none"
