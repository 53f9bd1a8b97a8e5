import datetime
import socket
import time
from collections.abc import Callable

import pytest
from grpc import aio

from adsum.serving.sockets import ListenError
from epp.config.settings import TransportKind
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire import certificate
from epp.wire.certificate import Certificate
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress, Listener
from tests.epp.local_picker import health_over
from tests.free_port import free_port

Listening = Callable[..., Listener]


@pytest.fixture(params=list(TransportKind))
async def listener(request: pytest.FixtureRequest) -> Listening:
    """`listener(host, port, secure=...)`: health alone, on one port."""

    def open_listener(host: str = "127.0.0.1", port: int = 0, *, secure: bool = False) -> Listener:
        pair = Certificate(certificate.self_signed(datetime.datetime.now(datetime.UTC))) if secure else None
        transport = open_transport(request.param, pytest.fail, Health(), MemoryBudget(1000), time.monotonic)
        return transport.listener(ListenAddress(host, port, pair), processing=False)

    return open_listener


async def check(address: str) -> int:
    async with aio.insecure_channel(address) as channel:
        answer: HealthCheckResponse = await health_over(channel)(HealthCheckRequest(service="liveness"))
        return answer.status


async def test_port_0_is_a_free_one(listener: Listening) -> None:
    async with listener() as one, listener() as other:
        assert 0 not in (one.port, other.port)
        assert one.port != other.port
        assert await check(one.address) == HealthCheckResponse.SERVING
        assert one.address == f"127.0.0.1:{one.port}"


@pytest.mark.parametrize("secure", [True, False])
async def test_a_taken_port_is_named(listener: Listening, secure: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with listener(port=port, secure=secure):
                pass


async def test_a_strange_address_is_named(listener: Listening) -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0"):
        async with listener("192.0.2.1"):
            pass


async def test_leaving_frees_the_port(listener: Listening) -> None:
    port = free_port()
    async with listener(port=port):
        pass
    async with listener(port=port) as second:
        assert await check(second.address) == HealthCheckResponse.SERVING
