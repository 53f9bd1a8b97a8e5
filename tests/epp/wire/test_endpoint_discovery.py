"""Endpoint discovery on the port of ext_proc, over both transports: the endpoints of picks, and who answers among them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
from grpc import StatusCode, aio

from adsum.tasks import background
from discovery import InstanceAddedEvent, InstanceRemovedEvent
from discovery.eds.assignment import Assignment, HealthStatus, LbEndpoint
from epp.config.settings import TransportKind
from epp.endpoints.datastore import Datastore
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.wire.endpoint_assignment import assigned, publish_endpoints
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress, Transport
from tests.discovery.eds.test_server import AskingEnvoy, connect, take_all_streams
from tests.epp.endpoints.test_datastore import instance
from tests.eventually import eventually

ONE = Assignment((LbEndpoint("", "10.0.0.1", 8000),))


def _no_exchange() -> None:
    raise AssertionError("nobody asks for a pick")


def _opened(kind: TransportKind, clock: Callable[[], float] = time.monotonic) -> Transport:
    return open_transport(kind, _no_exchange, Health(), MemoryBudget(10**6), clock)


@pytest.fixture(params=list(TransportKind))
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Transport, aio.Channel]]:
    transport = _opened(request.param)
    listener = transport.listener(ListenAddress("127.0.0.1", 0), processing=True)
    async with listener, aio.insecure_channel(listener.address) as channel:
        yield transport, channel


async def test_each_envoy_is_told_of_each_change_once(served: tuple[Transport, aio.Channel]) -> None:
    transport, channel = served
    envoys = [AskingEnvoy(channel), AskingEnvoy(channel)]
    for envoy in envoys:
        await envoy.ask("workers")
    for published in ONE, Assignment():
        transport.assignments.publish(published)
        transport.assignments.publish(published)
        for envoy in envoys:
            response, hosts = await envoy.told()
            assert len(hosts) == len(published.endpoints)
            await envoy.ask("workers", nonce=response.nonce)
    assert await envoys[1].is_silent()


async def test_a_drain_sends_envoys_to_another_picker(served: tuple[Transport, aio.Channel]) -> None:
    transport, channel = served
    transport.assignments.publish(ONE)
    envoy = AskingEnvoy(channel)
    await envoy.ask("workers")
    await envoy.told()
    transport.drain()
    assert await envoy.refused() is StatusCode.UNAVAILABLE
    await eventually(lambda: transport.assignments.subscribers == set())


@pytest.mark.parametrize("kind", list(TransportKind))
async def test_one_address_does_not_take_all_streams(kind: TransportKind) -> None:
    transport = _opened(kind)
    transport.assignments.publish(ONE)
    async with (
        transport.listener(ListenAddress("::", 0), processing=True) as listener,
        AsyncExitStack() as stack,
    ):
        port = listener.address.rpartition(":")[2]
        envoys = await take_all_streams(stack, f"127.0.0.1:{port}")
        other = AskingEnvoy(await connect(stack, f"[::1]:{port}"))
        await other.ask("workers")
        await other.told()
        envoys[0].call.cancel()
        await eventually(lambda: len(transport.assignments.subscribers) == len(envoys))
        late = AskingEnvoy(await connect(stack, f"127.0.0.1:{port}"))
        await late.ask("workers")
        await late.told()


async def test_a_stream_that_asks_without_end_is_ended() -> None:
    """100 requests at once, then 20 a second."""
    now = [0.0]
    transport = _opened(TransportKind.HTTP2, lambda: now[0])
    transport.assignments.publish(ONE)
    listener = transport.listener(ListenAddress("127.0.0.1", 0), processing=True)
    async with listener, aio.insecure_channel(listener.address) as channel:
        flooding, other = AskingEnvoy(channel), AskingEnvoy(channel)
        for _ in range(100):
            await flooding.ask("workers")
        await flooding.told()
        now[0] = 1.0
        for number in range(20):
            await flooding.ask("other" if number % 2 == 0 else "workers")
            if number % 2:
                await flooding.told()
        await flooding.ask("other")
        assert await flooding.refused() is StatusCode.RESOURCE_EXHAUSTED
        await other.ask("workers")
        await other.told()


async def test_no_more_streams_than_a_picker_can_tell() -> None:
    transport = _opened(TransportKind.HTTP2)
    transport.assignments.publish(ONE)
    transport.assignments.subscribers |= {partial(int) for _ in range(4096)}
    listener = transport.listener(ListenAddress("127.0.0.1", 0), processing=True)
    async with listener, aio.insecure_channel(listener.address) as channel:
        envoy = AskingEnvoy(channel)
        await envoy.ask("workers")
        assert await envoy.refused() is StatusCode.RESOURCE_EXHAUSTED


async def test_envoys_hear_of_the_endpoints_of_picks(served: tuple[Transport, aio.Channel]) -> None:
    transport, channel = served
    store = Datastore()
    store.apply(InstanceAddedEvent(instance("a", address="10.0.0.1")))
    store.apply(InstanceAddedEvent(instance("b", address="10.0.0.2")))
    envoy = AskingEnvoy(channel)
    async with background(publish_endpoints(store, transport.assignments)):
        await envoy.ask("workers")
        assert [host for host, _, health in (await envoy.told())[1] if not health] == ["10.0.0.1", "10.0.0.2"]
        store.set_ejected(store.endpoints[0], ejected=True)
        assert [health for _, _, health in (await envoy.told())[1]] == [2, 0]
        store.set_ejected(store.endpoints[1], ejected=True)
        assert [health for _, _, health in (await envoy.told())[1]] == [0, 0], "picks choose among all then"
        store.apply(InstanceRemovedEvent(instance("b", address="10.0.0.2"), "deleted"))
        assert [host for host, _, _ in (await envoy.told())[1]] == ["10.0.0.1"]
    assert store.on_change == []


def test_each_port_is_an_endpoint_and_each_address_is_told_once() -> None:
    store = Datastore()
    for name, port in (("rank-0", 8000), ("rank-1", 8001), ("replaced", 8001)):
        store.apply(InstanceAddedEvent(instance(name, address="10.0.0.1", port=port)))
    store.apply(InstanceAddedEvent(instance("named", address="worker.example")))
    ports = assigned(store.endpoints, [True, False, True, True])
    assert [(one.port, one.health) for one in ports.endpoints] == [
        (8000, HealthStatus.HEALTHY),
        (8001, HealthStatus.HEALTHY),
    ]
    assert ports.without_ip == ("named",)
