import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from epp.config.settings import TransportKind
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.messages.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
READINESS = ["", "envoy.service.ext_proc.v3.ExternalProcessor", "readiness", "inference-extension"]


class Probe:
    """What a kubelet, Envoy or grpcurl asks."""

    def __init__(self, channel: aio.Channel) -> None:
        request, response = HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        self._check: Any = channel.unary_unary("/grpc.health.v1.Health/Check", request, response)
        self._watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", request, response)
        self._list: Any = channel.unary_unary(
            "/grpc.health.v1.Health/List", HealthListRequest.SerializeToString, HealthListResponse.FromString
        )

    async def check(self, service: str) -> int:
        answer: HealthCheckResponse = await self._check(HealthCheckRequest(service=service))
        return answer.status

    def watch(self, service: str) -> Any:
        return self._watch(HealthCheckRequest(service=service))

    async def list(self) -> dict[str, int]:
        answer = await self._list(HealthListRequest())
        return {service: status.status for service, status in answer.statuses.items()}


@pytest.fixture
async def health() -> Health:
    return Health()


@pytest.fixture(params=list(TransportKind))
async def probe(request: pytest.FixtureRequest, health: Health) -> AsyncIterator[Probe]:
    transport = open_transport(request.param, pytest.fail, health, MemoryBudget(1000), time.monotonic)
    async with transport.listener(ListenAddress("127.0.0.1", 0), processing=False) as listener:
        async with aio.insecure_channel(listener.address) as channel:
            yield Probe(channel)
        health.close()


@pytest.mark.parametrize("service", READINESS)
async def test_readiness_follows_serving(health: Health, probe: Probe, service: str) -> None:
    assert await probe.check(service) == NOT_SERVING
    health.set_serving(True)
    assert await probe.check(service) == SERVING
    health.set_serving(False)
    assert await probe.check(service) == NOT_SERVING


async def test_a_reason_withholds_readiness_and_nothing_else(health: Health, probe: Probe) -> None:
    health.set_serving(True)
    health.withhold("there is no pool")
    assert (await probe.check("readiness"), health.withheld) == (NOT_SERVING, "there is no pool")
    assert await probe.check("liveness") == SERVING
    health.withhold(None)
    assert await probe.check("readiness") == SERVING
    health.set_serving(False)
    health.withhold(None)
    assert await probe.check("readiness") == NOT_SERVING, "a picker that drains stays so"


async def test_liveness_always_serves(probe: Probe) -> None:
    assert await probe.check("liveness") == SERVING


async def test_an_unknown_service_is_not_found(probe: Probe) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await probe.check("nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_changes_and_ends_with_the_server(health: Health, probe: Probe) -> None:
    call = probe.watch("readiness")
    assert (await call.read()).status == NOT_SERVING
    health.set_serving(True)
    assert (await call.read()).status == SERVING
    health.set_serving(True)
    health.set_serving(False)
    assert (await call.read()).status == NOT_SERVING
    health.close()
    async with asyncio.timeout(90):
        assert await call.read() is aio.EOF


async def test_watching_an_unknown_service_waits(probe: Probe) -> None:
    call = probe.watch("nobody")
    assert (await call.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
    call.cancel()


async def test_list_names_every_service(health: Health, probe: Probe) -> None:
    assert await probe.list() == {"liveness": SERVING} | dict.fromkeys(READINESS, NOT_SERVING)
