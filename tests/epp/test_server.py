import asyncio
import datetime
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc import aio

from adsum.config.problems import ConfigError
from adsum.serving.sockets import ListenError
from epp import worker_discovery
from epp.config.settings import HEALTH_FAILURES, HEALTH_INTERVAL, LAME_DUCK, Settings, TransportKind
from epp.ext_proc.protocol import SUBSET_NAMESPACE
from epp.request.control_headers import SCORES, SUBSET
from epp.server import PickerServer
from epp.wire import certificate
from epp.wire.messages.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.epp import local_picker
from tests.epp.local_picker import addresses, health_over, stream_over
from tests.eventually import eventually
from tests.http_server import http_server

TRANSPORTS = pytest.mark.parametrize("transport", list(TransportKind))
PROMPT = json.dumps({"model": "m", "prompt": "hello"}).encode()


class Worker:
    """A model server that has a vLLM metrics page and no metadata."""

    def __init__(self, waiting: int, more: str = "") -> None:
        self.waiting = waiting
        self.more = more
        self.scrapes = 0
        self.port = 0

    @property
    def destination(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Worker"]:
        async with http_server({"/metrics": self._metrics}) as self.port:
            yield self

    async def _metrics(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        lines = f"vllm:num_requests_waiting {self.waiting}\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.1\n"
        return web.Response(text=lines + self.more)


local = partial(local_picker.local, metrics_staleness_threshold=3600.0)
"""A machine that stands still makes no page old."""


@pytest.fixture
def nobody(tmp_path: Path) -> str:
    """A discovery that knows of no worker."""
    path = tmp_path / "nobody.yaml"
    path.write_text("endpoints: []\n")
    return f"static://{path}"


async def pick(address: str, messages: Any, *, credentials: grpc.ChannelCredentials | None = None) -> Any:
    """One request's answer to its headers."""
    options = [("grpc.ssl_target_name_override", "localhost")]
    channel = (
        aio.insecure_channel(address)
        if credentials is None
        else aio.secure_channel(address, credentials, options=options)
    )
    async with channel:
        stream = stream_over(channel)
        await stream.write(messages.headers())
        await stream.write(messages.body(PROMPT, end_of_stream=True))
        answer: ProcessingResponse = await stream.read()
        await stream.done_writing()
    if answer.HasField("immediate_response"):
        return answer.immediate_response.status.code
    (option,) = answer.request_headers.response.header_mutation.set_headers
    return option.header.raw_value.decode()


async def answers(address: str, asked: list[ProcessingRequest]) -> list[ProcessingResponse]:
    """The first answers of one stream, as many as were asked for."""
    async with aio.insecure_channel(address) as channel:
        stream = stream_over(channel)
        found = []
        for message in asked:
            await stream.write(message)
            found.append(await stream.read())
        await stream.done_writing()
        return found


async def check(address: str, service: str) -> int:
    async with aio.insecure_channel(address) as channel:
        answer: HealthCheckResponse = await health_over(channel)(HealthCheckRequest(service=service))
        return answer.status


async def fetch(address: str, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        assert answer.status == 200
        return await answer.text()


@TRANSPORTS
async def test_from_fixed_endpoints_to_a_pick(messages: Any, transport: TransportKind) -> None:
    async with Worker(waiting=9).serving() as busy, Worker(waiting=0).serving() as idle:
        where = f"static://{busy.destination},{idle.destination}"
        settings = local(discovery=where, pool_name="pool", transport=transport)
        async with PickerServer(settings) as server:
            where = addresses(server)
            await eventually(lambda: busy.scrapes > 1 and idle.scrapes > 1)
            assert [await pick(where["grpc"], messages) for _ in range(3)] == [idle.destination] * 3
            for address in (where["grpc"], where["health"]):
                for service in ("", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"):
                    assert await check(address, service) == HealthCheckResponse.SERVING
            page = await fetch(where["metrics"], "/metrics")
            assert 'llm_d_epp_ready_endpoints{name="pool"} 2.0' in page
            assert 'llm_d_epp_average_queue_size{name="pool"} 4.5' in page
            assert 'llm_d_epp_request_total{fairness_id="default-flow",model_name="m",priority="0"' in page
            described = json.loads(await fetch(where["metrics"], "/debug/endpoints"))["endpoints"]
            assert {each["destination"]: each["waiting"] for each in described} == {
                busy.destination: 9,
                idle.destination: 0,
            }
            assert await fetch(where["metrics"], "/healthz") == "ok\n"


HOT_OR_COLD = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: core-metrics-extractor
  parameters:
    defaultEngine: vllm
    engineConfigs:
    - {name: vllm, queuedRequestsSpec: "vllm:num_requests_waiting", customMetrics: [{attributeKey: Heat, metricSpec: heat}]}
- type: endpoint-attribute-scorer
  parameters: {attributeKey: Heat, algorithm: {type: linear_lower_is_better}}
"""


async def test_a_file_that_changes_ranks_otherwise_and_sets_a_token(messages: Any, tmp_path: Path) -> None:
    hot, cold = Worker(0, "heat 90\n"), Worker(0, "heat 30\n")
    path = tmp_path / "picker.yaml"
    path.write_text(HOT_OR_COLD)
    async with hot.serving(), cold.serving():
        listed = f"static://{hot.destination},{cold.destination}"
        async with PickerServer(local(discovery=listed, config_file=path)) as server:

            async def answered() -> tuple[str, bool]:
                """Where a request goes, and whether its answer has a session token."""
                headers, body = messages.headers(mode="BUFFERED"), messages.body(PROMPT, end_of_stream=True)
                asked = [headers, body, messages.response_headers("200")]
                _, routed, last = await answers(addresses(server)["grpc"], asked)
                (option,) = routed.request_body.response.header_mutation.set_headers
                changes = last.response_headers.response.header_mutation.set_headers
                return option.header.raw_value.decode(), bool(changes)

            async def is_so(worker: Worker, *, token: bool) -> bool:
                return {await answered() for _ in range(5)} == {(worker.destination, token)}

            await eventually(lambda: is_so(cold, token=False))
            other = HOT_OR_COLD.replace("lower_is", "higher_is")
            path.write_text(other + "- {type: session-affinity-scorer}\n")
            await eventually(lambda: is_so(hot, token=True))
            path.write_text(HOT_OR_COLD)
            await eventually(lambda: is_so(cold, token=False))


@TRANSPORTS
@pytest.mark.parametrize("own", [True, False])
async def test_secure_serving(messages: Any, tmp_path: Path, own: bool, transport: TransportKind) -> None:
    settings = local(
        discovery="static://127.0.0.1:9",
        secure_serving=True,
        cert_path=tmp_path if own else None,
        transport=transport,
    )
    if own:
        pair = certificate.self_signed(datetime.datetime.now(datetime.UTC))
        (tmp_path / "tls.key").write_bytes(pair.key)
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
    async with PickerServer(settings) as server:
        address = addresses(server)["grpc"]
        if own:
            credentials = grpc.ssl_channel_credentials(root_certificates=pair.certificate)
            assert await pick(address, messages, credentials=credentials) == 503
        with pytest.raises(aio.AioRpcError):
            await check(address, "liveness")  # plain text


async def test_the_status_page_says_whether_it_serves(nobody: str) -> None:
    async with PickerServer(local(discovery=nobody)) as server:
        page = json.loads(await fetch(addresses(server)["metrics"], "/status"))
        assert page["outliers"] == [], "ejection is on by default"
        assert (page["serving"], page["reason"], page["workers"]) == (True, None, nobody)
        assert page["watch"] == {"state": "synced", "reason": None}
        assert "/status" in await fetch(addresses(server)["metrics"], "/")
        await server.drain()
        page = json.loads(await fetch(addresses(server)["metrics"], "/status"))
        assert (page["serving"], page["reason"]) == (False, "it starts or drains")


@TRANSPORTS
async def test_drain_says_so_first(nobody: str, transport: TransportKind) -> None:
    async with PickerServer(local(discovery=nobody, transport=transport)) as server:
        await server.drain()
        assert await check(addresses(server)["health"], "readiness") == HealthCheckResponse.NOT_SERVING
        assert await check(addresses(server)["health"], "liveness") == HealthCheckResponse.SERVING
        with pytest.raises(aio.AioRpcError):
            await check(addresses(server)["grpc"], "liveness")


async def test_a_client_ca_and_a_certificate_that_is_read_again(
    nobody: str, messages: Any, tmp_path: Path
) -> None:
    first, second = (certificate.self_signed(datetime.datetime.now(datetime.UTC)) for _ in range(2))
    authority = tmp_path / "ca.pem"
    authority.write_bytes(first.certificate)

    def write(pair: certificate.KeyPair) -> None:
        (tmp_path / "tls.key").write_bytes(pair.key)
        (tmp_path / "tls.crt").write_bytes(pair.certificate)

    write(first)
    settings = local(
        discovery=nobody,
        secure_serving=True,
        cert_path=tmp_path,
        enable_cert_reload=True,
        client_ca_file=authority,
    )

    async def picked(trusted: certificate.KeyPair) -> bool:
        known = grpc.ssl_channel_credentials(trusted.certificate, first.key, first.certificate)
        try:
            return bool(await pick(address, messages, credentials=known) == 503)
        except aio.AioRpcError:
            return False

    async with PickerServer(settings) as server:
        address = addresses(server)["grpc"]
        assert await picked(first)
        with pytest.raises(aio.AioRpcError):
            await pick(address, messages, credentials=grpc.ssl_channel_credentials(first.certificate))
        write(second)
        await eventually(lambda: picked(second))


async def drains_without_a_wait(
    settings: Settings, before: Callable[[PickerServer], Awaitable[object]]
) -> bool:
    """Whether one of some drains is over before data planes can have noticed: a busy machine makes them only slower."""
    for _ in range(5):
        async with PickerServer(settings) as server:
            await before(server)
            began = time.monotonic()
            await server.drain()
            if time.monotonic() - began < LAME_DUCK:
                return True
    return False


async def test_drain_waits_for_nobody_where_nobody_came(nobody: str) -> None:
    async def nobody_asks(server: PickerServer) -> None:
        pass

    assert await drains_without_a_wait(local(discovery=nobody), nobody_asks)


@TRANSPORTS
async def test_whoever_has_not_heard_that_a_picker_leaves_is_served(
    nobody: str, messages: Any, transport: TransportKind
) -> None:
    async with PickerServer(local(discovery=nobody, transport=transport)) as server:
        address = addresses(server)["grpc"]
        assert await pick(address, messages) == 503
        began, served = time.monotonic(), 0
        draining = asyncio.create_task(server.drain())
        try:
            while not draining.done():
                assert await check(address, "") == HealthCheckResponse.NOT_SERVING
                assert await pick(address, messages) == 503
                served += 1
                await asyncio.sleep(0.02)  # it is one client, not a load
        # InvalidStateError: grpc's client, if the call ends before it writes
        except (aio.AioRpcError, asyncio.InvalidStateError):
            assert time.monotonic() - began > HEALTH_INTERVAL * HEALTH_FAILURES
        assert served > 0
        async with asyncio.timeout(90):
            await draining
        with pytest.raises(aio.AioRpcError):
            await check(address, "")


@TRANSPORTS
async def test_a_drain_takes_no_longer_than_it_may(
    nobody: str, messages: Any, transport: TransportKind
) -> None:
    async def somebody_asks(server: PickerServer) -> None:
        assert await pick(addresses(server)["grpc"], messages) == 503

    settings = local(discovery=nobody, drain_timeout=0.2, transport=transport)
    assert await drains_without_a_wait(settings, somebody_asks)


async def test_all_unfinished_bodies_together_are_bounded(nobody: str, messages: Any) -> None:
    settings = local(discovery=nobody, max_body_bytes=1000, max_buffered_bytes=1500)
    async with PickerServer(settings) as server, aio.insecure_channel(addresses(server)["grpc"]) as channel:

        async def begun() -> Any:
            """A stream that holds 1,000 bytes."""
            stream = stream_over(channel)
            await stream.write(messages.headers())
            await stream.write(messages.body(bytes(1000), end_of_stream=False))
            return stream

        async with asyncio.timeout(90):
            silent, last = await begun(), await begun()
            answer: ProcessingResponse = await silent.read()
            assert answer.immediate_response.status.code == 503, "the next one took its room"
            assert b"unfinished" in answer.immediate_response.body
            await last.write(messages.body(b"", end_of_stream=True))
            said: ProcessingResponse = await last.read()
            assert said.immediate_response.status.code == 400, "it was whole, and was read"


@pytest.mark.parametrize("changed", [True, False])
async def test_scores_and_the_subset_hint_are_matters_of_flags(
    messages: Any, context: Any, changed: bool
) -> None:
    """As the Go picker's --emit-endpoint-scores and --disable-endpoint-subset-filter."""
    async with Worker(waiting=0).serving() as worker:
        settings = local(
            discovery=f"static://{worker.destination}",
            emit_endpoint_scores=changed,
            disable_endpoint_subset_filter=changed,
        )
        nowhere = context(SUBSET_NAMESPACE, {SUBSET: ["10.9.9.9:1"]})
        async with PickerServer(settings) as server:
            get = {":method": "GET"}
            elsewhere = messages.headers(get, end_of_stream=True, context=nowhere)
            [refused] = await answers(addresses(server)["grpc"], [elsewhere])
            assert refused.HasField("immediate_response") is not changed
            [picked] = await answers(addresses(server)["grpc"], [messages.headers(get, end_of_stream=True)])
            told = picked.dynamic_metadata.fields["envoy.lb"].struct_value.fields
            assert (SCORES in told) is changed
            if changed:
                assert list(told[SCORES].struct_value.fields) == [worker.destination]


@pytest.mark.parametrize(("interval", "warned"), [(0.001, True), (0.05, False)])
async def test_metrics_are_not_refreshed_more_often_than_the_go_picker_would(
    nobody: str, caplog: pytest.LogCaptureFixture, interval: float, warned: bool
) -> None:
    async with PickerServer(local(discovery=nobody, refresh_metrics_interval=interval)):
        pass
    assert ("the least interval, not every 0.001 s" in caplog.text) is warned


@pytest.mark.parametrize("port", ["grpc_port", "grpc_health_port", "metrics_port"])
async def test_a_taken_port_is_named_and_nothing_stays_open(nobody: str, port: str) -> None:
    before = len(asyncio.all_tasks())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        flag = "--" + port.replace("_", "-")
        with pytest.raises(ListenError, match=f"{number}.*{flag}"):
            async with PickerServer(local(discovery=nobody, **{port: number})):
                pass
    assert len(asyncio.all_tasks()) == before


async def test_opening_and_closing_leaves_nothing(nobody: str) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with PickerServer(local(discovery=nobody)):
            pass
    await eventually(lambda: len(asyncio.all_tasks()) == before)


async def test_a_configuration_file_that_lists_the_endpoints(messages: Any, tmp_path: Path) -> None:
    listed = tmp_path / "endpoints.yaml"
    text = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: file-discovery
  parameters: {{path: {listed}, watchFile: true}}
- type: random-picker
dataLayer:
  discovery: {{pluginRef: file-discovery}}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: random-picker}}]
"""
    async with Worker(waiting=0).serving() as worker:
        listed.write_text(f"endpoints: [{{name: w, address: 127.0.0.1, port: {worker.port}}}]\n")
        async with PickerServer(local(config_text=text)) as server:
            assert await pick(addresses(server)["grpc"], messages) == worker.destination
    with pytest.raises(ConfigError, match="give one of them"):
        async with PickerServer(local(config_text=text, discovery="static://127.0.0.1:9")):
            pass


async def test_a_picker_that_began_without_workers_outlasts_its_search_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks under other names only until it has a worker."""
    monkeypatch.setattr(worker_discovery, "_LOOK_INTERVAL", 0.01)
    listed = tmp_path / "endpoints.yaml"
    listed.write_text("endpoints: []\n")

    def looks() -> bool:
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return "WorkerDiscovery._look_elsewhere" in names

    async with (
        Worker(waiting=0).serving() as worker,
        PickerServer(local(discovery=f"static://{listed}")) as server,
    ):
        assert looks()
        listed.write_text(f"endpoints: [{{name: w, address: 127.0.0.1, port: {worker.port}}}]\n")
        await eventually(lambda: not looks())
        assert not any(task.done() for task in server.tasks)


async def test_a_task_that_ends_although_it_must_not_is_a_failure() -> None:
    """Otherwise the picker would end with exit code 0, as if somebody had stopped it."""

    async def ends() -> None:
        """At once."""

    async with (
        Worker(0).serving() as worker,
        PickerServer(local(discovery=f"static://{worker.destination}")) as server,
    ):
        server._start(ends())
        with pytest.raises(RuntimeError, match=r"ends ended, but must last"):
            async with asyncio.timeout(90):
                await server.wait_for_failure()
