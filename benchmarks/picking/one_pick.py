"""Asks a running picker for one pick after the other, without a data plane."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from grpc import aio

from epp.ext_proc.protocol import EXT_PROC
from epp.wire.messages.ext_proc_pb2 import HeaderValue, HttpHeaders, ProcessingRequest, ProcessingResponse

PICKS_AT_RANDOM: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
"""
"""A configuration by which only what the picker knows of a worker's life keeps requests away from it."""


def picks_over(channel: aio.Channel) -> Callable[[], Awaitable[str]]:
    """A function that returns the destination of one request."""
    process: Any = channel.stream_stream(
        f"/{EXT_PROC}/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )
    message = ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True))
    for name, value in {":method": "GET", ":path": "/health"}.items():
        field = HeaderValue(key=name, raw_value=value.encode())
        message.request_headers.headers.headers.append(field.SerializeToString())

    async def pick() -> str:
        stream = process()
        await stream.write(message)
        answer = await stream.read()
        await stream.done_writing()
        await stream.code()
        (option,) = answer.request_headers.response.header_mutation.set_headers
        destination: str = option.header.raw_value.decode()
        return destination

    return pick
