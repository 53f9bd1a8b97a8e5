"""A picker in the process of a test, on free ports: its addresses, its pages, its streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from grpc import aio

from epp.config import flags
from epp.config.settings import Settings
from epp.server import PickerServer
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.epp.epp_program import LOCAL


def local(**changes: Any) -> Settings:
    """Without TLS, unless told otherwise."""
    ports = {"grpc_port": 0, "grpc_health_port": 0, "metrics_port": 0}
    defaults: dict[str, Any] = {"host": "127.0.0.1", "secure_serving": False, **ports}
    return Settings(**(defaults | changes))


def addresses(server: PickerServer) -> dict[str, str]:
    """By what is served there."""
    return addresses_in(server.ready_line)


def addresses_in(ready_line: str) -> dict[str, str]:
    word, *pairs = ready_line.split()
    assert word == "ready"
    return dict(pair.split("=") for pair in pairs)


@asynccontextmanager
async def picker(*arguments: str) -> AsyncIterator[dict[str, str]]:
    """The addresses of one with these flags."""
    settings, _, _ = flags.parse([*LOCAL, *arguments])
    async with PickerServer(settings) as server:
        yield addresses(server)


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


def stream_over(channel: aio.Channel) -> Any:
    """A new one, as Envoy opens it for a request."""
    return channel.stream_stream(
        "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )()


def health_over(channel: aio.Channel) -> Any:
    """The call that asks whether a service is served."""
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
