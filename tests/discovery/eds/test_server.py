"""Endpoint discovery over gRPC, asked as Envoy asks: subscribe, acknowledge, refuse, come back."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from grpc import StatusCode, aio

from adsum.tasks import background
from discovery.eds.assignment import TYPE_URL, Assignment, HealthStatus, LbEndpoint, resource
from discovery.eds.messages.eds_pb2 import (
    ClusterLoadAssignment,
    DiscoveryRequest,
    DiscoveryResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    Node,
    RpcStatus,
)
from discovery.eds.server import EdsListenError, EdsServer, EndpointService, ServerTls
from discovery.eds.subscription import METHOD, EndpointSubscription, Publication
from tests.eventually import eventually
from tests.kubernetes.fake.authority import Authority

ONE = Assignment((LbEndpoint("", "10.0.0.1", 8000),))
TWO = Assignment((*ONE.endpoints, LbEndpoint("east", "10.0.0.2", 8000, HealthStatus.UNHEALTHY)))


@pytest.fixture
async def server() -> AsyncIterator[EdsServer]:
    async with EdsServer("127.0.0.1", 0, "workers") as running:
        yield running


class AskingEnvoy:
    """One stream of an Envoy."""

    def __init__(self, channel: aio.Channel) -> None:
        method = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"
        self.call: Any = channel.stream_stream(
            method,
            request_serializer=DiscoveryRequest.SerializeToString,
            response_deserializer=DiscoveryResponse.FromString,
        )()

    async def ask(self, *names: str, nonce: str = "", refused: str | None = None) -> None:
        error = None if refused is None else RpcStatus(code=13, message=refused)
        request = DiscoveryRequest(
            node=None if nonce else Node(id="envoy-1", cluster="c"),
            resource_names=names,
            type_url=TYPE_URL,
            response_nonce=nonce,
            error_detail=error,
        )
        await self.call.write(request)

    async def told(self) -> tuple[DiscoveryResponse, list[tuple[str, int, int]]]:
        """The next response, and address, port and health of each endpoint in it."""
        async with asyncio.timeout(90):
            response = await self.call.read()
        assert response.type_url == TYPE_URL
        [resource] = response.resources
        assert resource.type_url == TYPE_URL
        named = ClusterLoadAssignment.FromString(resource.value)
        assert named.cluster_name == "workers"
        hosts = [
            (
                e.endpoint.address.socket_address.address,
                e.endpoint.address.socket_address.port_value,
                e.health_status,
            )
            for locality in named.endpoints
            for e in locality.lb_endpoints
        ]
        return response, hosts

    async def refused(self) -> StatusCode:
        """How the stream ends."""
        with pytest.raises(aio.AioRpcError) as ended:
            async with asyncio.timeout(90):
                await self.call.read()
        code: StatusCode = ended.value.code()
        return code

    async def is_silent(self) -> bool:
        try:
            async with asyncio.timeout(0.2):
                await self.call.read()
        except TimeoutError:
            return True
        return False


@pytest.fixture
async def channel(server: EdsServer) -> AsyncIterator[aio.Channel]:
    async with aio.insecure_channel(server.address) as opened:
        yield opened


async def test_every_envoy_is_told_at_once_and_of_each_change(
    server: EdsServer, channel: aio.Channel
) -> None:
    server.publish(ONE)
    envoys = [AskingEnvoy(channel) for _ in range(3)]
    for envoy in envoys:
        await envoy.ask("workers")
        response, hosts = await envoy.told()
        assert hosts == [("10.0.0.1", 8000, 0)]
        await envoy.ask("workers", nonce=response.nonce)
    server.publish(TWO)
    for envoy in envoys:
        response, hosts = await envoy.told()
        assert hosts == [("10.0.0.1", 8000, 0), ("10.0.0.2", 8000, 2)]
        in_the_file = ParseDict(resource("workers", TWO.endpoints), ClusterLoadAssignment())
        assert ClusterLoadAssignment.FromString(response.resources[0].value) == in_the_file
        await envoy.ask("workers", nonce=response.nonce)
    server.publish(Assignment())
    for envoy in envoys:
        assert (await envoy.told())[1] == [], "no worker is an answer too"


async def test_before_the_first_assignment_nobody_is_answered(
    server: EdsServer, channel: aio.Channel
) -> None:
    """An Envoy that comes back keeps its endpoints until this server knows better."""
    envoy = AskingEnvoy(channel)
    await envoy.ask("workers")
    reading = asyncio.ensure_future(envoy.told())
    await asyncio.sleep(0.1)
    assert not reading.done()
    server.publish(ONE)
    assert (await reading)[1] == [("10.0.0.1", 8000, 0)]


async def test_an_acknowledged_assignment_is_not_sent_again(server: EdsServer, channel: aio.Channel) -> None:
    server.publish(ONE)
    envoy = AskingEnvoy(channel)
    await envoy.ask("workers")
    response, _ = await envoy.told()
    await envoy.ask("workers", nonce=response.nonce)
    server.publish(ONE)
    await envoy.ask("workers", nonce="of an older response")
    assert await envoy.is_silent()


async def test_a_refusal_is_logged_and_the_next_assignment_is_sent(
    server: EdsServer, channel: aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    server.publish(ONE)
    envoy = AskingEnvoy(channel)
    await envoy.ask("workers")
    response, _ = await envoy.told()
    with caplog.at_level(logging.ERROR, "discovery.eds"):
        await envoy.ask("workers", nonce=response.nonce, refused="malformed\nIP address")
        await eventually(lambda: caplog.messages)
    [line] = caplog.messages
    assert line == "'envoy-1' refused the endpoints and keeps what it had: 'malformed\\nIP address'"
    server.publish(TWO)
    assert len((await envoy.told())[1]) == 2


async def test_refusals_without_end_fill_no_log_and_are_read_slowly(
    server: EdsServer, channel: aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    server.publish(ONE)
    flooding, other = AskingEnvoy(channel), AskingEnvoy(channel)
    await flooding.ask("workers")
    response, _ = await flooding.told()

    async def flood() -> None:
        while True:
            await flooding.ask("workers", nonce=response.nonce, refused="no")

    began = time.monotonic()
    async with background(flood()):
        await eventually(lambda: caplog.messages)
        await other.ask("workers")
        assert (await other.told())[1] == [("10.0.0.1", 8000, 0)]
        await asyncio.sleep(0.5)
        assert server._publication.limited_log._seen["refused"] <= 20 * (time.monotonic() - began + 1)
    assert len([line for line in caplog.messages if "refused" in line]) == 1


def test_streams_without_end_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "discovery.eds")
    publication = Publication("workers")
    for number in range(1000):
        EndpointSubscription(publication).receive(DiscoveryRequest(node=Node(id=f"envoy-{number}")))
    assert caplog.messages[0] == "'envoy-0' asks for the endpoints"
    assert len(caplog.messages) == 20


async def connect(stack: AsyncExitStack, address: str) -> aio.Channel:
    """A connection of its own: other channels share one."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return await stack.enter_async_context(aio.insecure_channel(address, options=own))


async def take_all_streams(stack: AsyncExitStack, address: str) -> list[AskingEnvoy]:
    """As many as one address may have; one more is refused."""
    envoys: list[AskingEnvoy] = []
    for _ in range(8):
        channel = await connect(stack, address)
        envoys += [AskingEnvoy(channel) for _ in range(32)]
        for envoy in envoys[-32:]:
            await envoy.ask("workers")
            await envoy.told()
    late = AskingEnvoy(await connect(stack, address))
    with suppress(aio.AioRpcError):  # it may be refused before it asks
        await late.ask("workers")
    assert await late.refused() is StatusCode.RESOURCE_EXHAUSTED
    return envoys


async def test_one_address_does_not_take_all_streams(server: EdsServer) -> None:
    server.publish(ONE)
    async with AsyncExitStack() as stack:
        await take_all_streams(stack, server.address)


async def test_only_clients_of_a_ca_are_told(tmp_path: Path) -> None:
    """What the files hold is read again: an authority that is replaced holds for the next client."""
    first, second = Authority("first"), Authority("second")
    served, client_ca = tmp_path / "served", tmp_path / "ca.crt"
    write_pair(first, served)
    client_ca.write_bytes(first.pem)
    async with EdsServer("127.0.0.1", 0, "workers", ServerTls(served, client_ca)) as server:
        server.publish(ONE)
        for authority, stranger in ((first, second), (second, first)):
            client_ca.write_bytes(authority.pem)
            for signer, told in ((authority, True), (stranger, False), (None, False)):
                own = () if signer is None else write_pair(signer, tmp_path / "client")
                credentials = grpc.ssl_channel_credentials(first.pem, *own)
                async with aio.secure_channel(server.address, credentials) as channel:
                    envoy = AskingEnvoy(channel)
                    if told:
                        await envoy.ask("workers")
                        assert len((await envoy.told())[1]) == 1
                    else:
                        assert await envoy.refused() is StatusCode.UNAVAILABLE


def write_pair(authority: Authority, folder: Path) -> tuple[bytes, bytes]:
    """A key and a certificate of the authority, as a Secret of type kubernetes.io/tls holds them."""
    folder.mkdir(exist_ok=True)
    authority.server_context(folder)
    key, chain = (
        (folder / "server.key").rename(folder / "tls.key"),
        (folder / "server.crt").rename(folder / "tls.crt"),
    )
    return key.read_bytes(), chain.read_bytes()


@pytest.mark.parametrize("absent", ["tls.crt", "ca.crt"])
async def test_files_that_cannot_be_served_are_named(tmp_path: Path, absent: str) -> None:
    authority = Authority("eds")
    write_pair(authority, tmp_path)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / absent).unlink()
    with pytest.raises(ValueError, match=f"cannot use .*{absent}: No such file"):
        async with EdsServer("127.0.0.1", 0, "workers", ServerTls(tmp_path, tmp_path / "ca.crt")):
            pass


async def test_another_cluster_is_told_nothing_and_the_log_says_why(
    server: EdsServer, channel: aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    server.publish(ONE)
    envoy = AskingEnvoy(channel)
    with caplog.at_level(logging.WARNING, "discovery.eds"):
        await envoy.ask("models")
        await eventually(lambda: caplog.messages)
    assert "asks for the cluster 'models'" in caplog.text
    await envoy.ask("models", "workers")
    assert (await envoy.told())[1] == [("10.0.0.1", 8000, 0)]


async def test_probes_hear_whether_there_is_an_assignment(server: EdsServer, channel: aio.Channel) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    assert (await check(HealthCheckRequest())).status == 2
    server.publish(Assignment())
    assert (await check(HealthCheckRequest())).status == 1


async def test_a_taken_port_is_an_error_that_names_it(server: EdsServer) -> None:
    host, _, port = server.address.rpartition(":")
    with pytest.raises(EdsListenError, match=f"cannot listen on {server.address}"):
        async with EdsServer(host, int(port), "workers"):
            pass


async def test_stopping_ends_the_streams_of_connected_envoys() -> None:
    stopping = EdsServer("127.0.0.1", 0, "workers")
    await stopping.__aenter__()
    async with aio.insecure_channel(stopping.address) as channel:
        envoy = AskingEnvoy(channel)
        await envoy.ask("workers")
        await asyncio.wait_for(stopping.__aexit__(None, None, None), 90)
        with pytest.raises(aio.AioRpcError):
            await envoy.call.read()


async def test_a_request_that_is_none_ends_its_stream_with_one_line(
    server: EdsServer, channel: aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    server.publish(ONE)
    call: Any = channel.stream_stream("/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints")()
    await call.write(b"\xff\xff\xff")
    with pytest.raises(aio.AioRpcError) as refused:
        await call.read()
    assert refused.value.code() is StatusCode.INVALID_ARGUMENT
    assert [record.exc_info for record in caplog.records] == [None]
    envoy = AskingEnvoy(channel)
    await envoy.ask("workers")
    assert (await envoy.told())[1] == [("10.0.0.1", 8000, 0)]


class SilentStream:
    """As grpc.aio's context of a stream on which nothing comes. `reading_at_abort`: whether a read was under way then."""

    def __init__(self) -> None:
        self._reading = self.reading_at_abort = False
        self.asked = asyncio.Event()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> None:
        self._reading = True
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._reading = False

    async def abort(self, code: StatusCode, details: str) -> None:
        self.reading_at_abort = self._reading
        raise aio.AbortError(details)


async def test_a_stream_is_not_read_any_more_when_it_is_aborted() -> None:
    """grpc.aio ends a read that is under way with the same error, which nobody would retrieve."""
    publication, stream = Publication("workers"), SilentStream()
    serving = asyncio.create_task(EndpointService(publication).handlers()[METHOD].stream_stream(None, stream))
    await stream.asked.wait()
    publication.close()
    with pytest.raises(aio.AbortError, match="shutting down"):
        await serving
    assert not stream.reading_at_abort
