"""Through a real Envoy, by the configuration that we print; workers and picker are in this process."""

import asyncio
import datetime
import hashlib
import io
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from discovery.eds.assignment import Assignment, LbEndpoint
from epp.config.picker_config import load_config
from epp.config.settings import TransportKind
from epp.endpoints.datastore import Datastore
from epp.envoy import flags as envoy_flags
from epp.envoy.config import bootstrap, render
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.ext_proc.exchange import Exchange
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.ext_proc.outcome_ledger import OutcomeLedger
from epp.health import Health
from epp.request.body import MemoryBudget
from epp.request.rejection import Rejection
from epp.scheduling.disaggregation.handler import PREFILL_HEADER as PREFILLER
from epp.wire import certificate
from epp.wire.certificate import Certificate
from epp.wire.opening import open_transport
from epp.wire.transport import ListenAddress, Listener, Transport
from tests.epp.scheduling.endpoint_pools import add_worker, director_of
from tests.eventually import eventually

GO_FILES = Path(__file__).parents[1] / "config" / "go_files"
ANY = Address("127.0.0.1", 0)
LOCAL = EnvoySettings(listen=ANY, admin=ANY, secure=False)


class Worker:
    """Says who it is and what it got; /stream sends one line, then waits to be told to go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.port = 0

    @property
    def destination(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Worker"]:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/stream", self._stream)
        app.router.add_get("/ws", self._echo)
        app.router.add_get("/flood", self._flood)
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with TestServer(app) as server:
            self.port = server.port or 0
            yield self

    async def _answer(self, request: web.Request) -> web.Response:
        digest = hashlib.sha256(await request.read()).hexdigest()
        headers = {name: value for name, value in request.headers.items() if name.startswith("x-gateway")}
        said = {"port": self.port, "sha256": digest, "headers": headers, "all": dict(request.headers)}
        said["pairs"] = list(request.headers.items())
        response = web.json_response(said)
        response.headers.add("set-cookie", "a=1")
        response.headers.add("set-cookie", "b=2")
        return response

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        await self.go_on.wait()
        await response.write(b"data: last\n\n")
        return response

    async def _flood(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(FLOOD):
            await response.write(b"%07d\n" % number * 500)
        return response


FLOOD = 5_000
"""Pieces of 4,000 bytes."""


class Picker:
    """One transport over a FakeDirector."""

    def __init__(
        self, kind: TransportKind, director: Any, *, secure: bool = False, client_ca: bytes | None = None
    ) -> None:
        health = Health()
        health.set_serving(True)
        memory = MemoryBudget(2**30)

        def exchange() -> Exchange:
            return Exchange(director, ExchangeSettings(), budget=memory)

        self.transport: Transport = open_transport(kind, exchange, health, memory, time.monotonic)
        self.transport.await_outcomes(OutcomeLedger(secrets.token_hex(8)))
        self.transport.assignments.publish(Assignment())  # an Envoy that starts waits for it
        pair = certificate.self_signed(datetime.datetime.now(datetime.UTC))
        served = Certificate(pair, client_ca=client_ca) if secure else None
        self.listener: Listener = self.transport.listener(
            ListenAddress("127.0.0.1", 0, served), processing=True
        )

    @property
    def port(self) -> int:
        return self.listener.port


class Mesh:
    """Opens what a test needs and closes it in the end."""

    def __init__(self, kind: TransportKind, stack: AsyncExitStack, running_envoy: Any, director: Any) -> None:
        self._kind = kind
        self._stack = stack
        self._running_envoy = running_envoy
        self.director = director

    async def worker(self) -> Worker:
        return await self._stack.enter_async_context(Worker().serving())

    async def picker(self, *, secure: bool = False, client_ca: bytes | None = None) -> Picker:
        picker = Picker(self._kind, self.director, secure=secure, client_ca=client_ca)
        await self._stack.enter_async_context(picker.listener)
        return picker

    async def envoy(self, config: str) -> Any:
        return await self._stack.enter_async_context(self._running_envoy(config))

    async def client(self) -> aiohttp.ClientSession:
        return await self._stack.enter_async_context(aiohttp.ClientSession())

    async def open(self, picking: Any, **settings: Any) -> tuple[Worker, Picker, Any, aiohttp.ClientSession]:
        """A worker, the picker that picks it, an Envoy before both with these settings, and a client."""
        worker, picker = await self.worker(), await self.picker()
        self.director.outcome = picking(worker.destination)
        envoy = await self.envoy(render(_settings(picker, **settings)))
        return worker, picker, envoy, await self.client()


TRANSPORTS = pytest.mark.parametrize("mesh", list(TransportKind), indirect=True)
"""For tests in which the transport takes part; what Envoy does with an answer is the same over both."""


@pytest.fixture
async def mesh(request: pytest.FixtureRequest, running_envoy: Any, director: Any) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        yield Mesh(getattr(request, "param", TransportKind.HTTP2), stack, running_envoy, director)


def _settings(picker: Picker, **changes: Any) -> EnvoySettings:
    return replace(LOCAL, pickers=(Address("127.0.0.1", picker.port),), **changes)


A_THOUSAND = [0] * 100 + [1_000] * 700 + [70_000] * 190 + [5_000_000] * 10
A_FEW = [0] * 10 + [1_000] * 40 + [70_000] * 10 + [5_000_000] * 2


@TRANSPORTS
@pytest.mark.parametrize(("secure", "sizes"), [(False, A_THOUSAND), (True, A_FEW)], ids=["plain", "tls"])
async def test_every_request_reaches_the_worker_that_was_picked(
    mesh: Mesh, picking: Any, secure: bool, sizes: list[int]
) -> None:
    """Bodies from nothing to 5 MB, each with a destination header of the client's own that must not count."""
    workers = [await mesh.worker() for _ in range(3)]
    mesh.director.outcome = lambda headers, body: picking(workers[int(headers["x-want"])].destination)
    picker = await mesh.picker(secure=secure)
    envoy = await mesh.envoy(render(_settings(picker, secure=secure)))
    client = await mesh.client()
    rng = random.Random(7)
    at_once = asyncio.Semaphore(16)

    async def ask(size: int) -> None:
        body, want = rng.randbytes(size), rng.randrange(3)
        headers = {"x-want": str(want), "x-gateway-destination-endpoint": "203.0.113.1:1"}
        async with (
            at_once,
            client.post(envoy.url("/v1/completions"), data=io.BytesIO(body), headers=headers) as answer,
        ):
            said = await answer.json()
            assert said["port"] == workers[want].port
            assert said["sha256"] == hashlib.sha256(body).hexdigest()
            assert said["headers"] == {"x-gateway-destination-endpoint": workers[want].destination}
            assert answer.headers.getall("set-cookie") == ["a=1", "b=2"]

    await asyncio.gather(*(ask(size) for size in rng.sample(sizes, len(sizes))))


CONTROL = [
    *[f"x-llm-d-{name}" for name in ("inference-objective", "inference-fairness-id", "model-name-rewrite")],
    *["x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms"],
    *[f"x-gateway-{name}" for name in ("inference-objective", "inference-fairness-id", "model-name-rewrite")],
    *[f"x-gateway-destination-endpoint-{name}" for name in ("fallback", "served", "subset", "scores")],
    *["x-llm-d-request-dropped-reason", "x-llm-d-not-yet-known", "x-gateway-not-yet-known"],
    *["x-prefiller-host-port", "x-encoder-hosts-ports", "x-data-parallel-host-port"],
    "x-kv-cache-source-host-port",
]


@pytest.mark.parametrize("body", [b"", b"{}"], ids=["headers only", "body"])
async def test_no_control_header_of_a_client_reaches_a_worker(mesh: Mesh, picking: Any, body: bytes) -> None:
    """They steer the picker, or a sidecar behind it; the picker still sees those that are its business."""
    worker, _, envoy, client = await mesh.open(picking)
    sent = {name.title(): "203.0.113.1:1" for name in ("x-gateway-destination-endpoint", *CONTROL)}
    sent |= {"x-request-id": "r-1", "authorization": "Bearer t", "x-gatewayed": "yes", "x-session-token": "s"}
    async with client.request("POST" if body else "GET", envoy.url(), data=body, headers=sent) as answer:
        got = {name.lower(): value for name, value in (await answer.json())["all"].items()}
    assert sorted(got.keys() & set(CONTROL)) == []
    assert got["x-gateway-destination-endpoint"] == worker.destination
    assert {"x-request-id", "authorization", "x-gatewayed", "x-session-token"} <= got.keys()
    ((seen, _, _),) = mesh.director.directed
    assert seen["x-llm-d-inference-objective"] == seen["x-gateway-inference-fairness-id"] == "203.0.113.1:1"


async def test_headers_that_clients_must_not_set_reach_no_picker(mesh: Mesh, picking: Any) -> None:
    flags = ["--remove-request-header=X-LLM-D-Inference-Objective", "--remove-request-header=x-tenant"]
    removed = envoy_flags.parse(flags).remove_request_headers
    _, _, envoy, client = await mesh.open(picking, remove_request_headers=removed)
    sent = {"x-llm-d-inference-objective": "top", "X-Tenant": "a", "x-other": "b"}
    async with client.post(envoy.url(), data=b"{}", headers=sent) as answer:
        got = {name.lower() for name in (await answer.json())["all"]}
    ((seen, _, _),) = mesh.director.directed
    assert (seen.keys() | got) & {*map(str.lower, sent)} == {"x-other"}


async def test_a_worker_is_told_its_prefill_worker_and_never_the_client_s(mesh: Mesh) -> None:
    """The decode worker has the prompt from the second request on."""
    worker, store = await mesh.worker(), Datastore()
    add_worker(store, "decode", "decode", address="127.0.0.1", port=worker.port)
    add_worker(store, "prefill", "prefill", address="127.0.0.1", port=9)
    config = load_config((GO_FILES / "pd-epp-config.yaml").read_text(), rng=random.Random(1))
    mesh.director = director_of(config, store)
    picker = await mesh.picker()
    envoy = await mesh.envoy(render(_settings(picker)))
    client = await mesh.client()
    forged = CIMultiDict([(PREFILLER.title(), "203.0.113.1:1"), (PREFILLER, "203.0.113.2:2")])
    body = {"model": "m", "prompt": "Tell me about the sea. " * 100}
    told = []
    for _ in range(2):
        async with client.post(envoy.url("/v1/completions"), json=body, headers=forged) as answer:
            got = (await answer.json())["pairs"]
            told.append([value for name, value in got if name.lower() == PREFILLER])
    assert told == [["127.0.0.1:9"], []]


@TRANSPORTS
async def test_a_body_that_ends_with_trailers(mesh: Mesh, picking: Any) -> None:
    worker, picker = await mesh.worker(), await mesh.picker()
    mesh.director.outcome = picking(worker.destination)
    config = bootstrap(_settings(picker))
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    chain["filters"][0]["typed_config"]["http_protocol_options"] = {"enable_trailers": True}
    envoy = await mesh.envoy(yaml.safe_dump(config))
    for body in (b"", b"hello"):
        reader, writer = await asyncio.open_connection("127.0.0.1", envoy.ports["inference"])
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\ntrailer: x-checksum\r\n\r\n"
        chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        writer.write(head + chunk + b"0\r\nx-checksum: 1\r\n\r\n")
        async with asyncio.timeout(90):
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert hashlib.sha256(body).hexdigest().encode() in answer


@TRANSPORTS
async def test_a_picker_that_asks_for_a_certificate_is_shown_one(
    mesh: Mesh, picking: Any, tmp_path: Path
) -> None:
    """A self-signed certificate is its own authority; a stranger's is refused, and so is none."""
    now = datetime.datetime.now(datetime.UTC)
    known, stranger = certificate.self_signed(now), certificate.self_signed(now)
    worker, picker = await mesh.worker(), await mesh.picker(secure=True, client_ca=known.certificate)
    mesh.director.outcome = picking(worker.destination)
    client = await mesh.client()
    for name, pair, status in (("known", known, 200), ("stranger", stranger, 503), ("none", None, 503)):
        arguments = ["--epp", f"127.0.0.1:{picker.port}", "--listen-port", "0", "--admin-port", "0"]
        if pair is not None:
            (tmp_path / f"{name}.crt").write_bytes(pair.certificate)
            (tmp_path / f"{name}.key").write_bytes(pair.key)
            arguments += ["--client-cert", str(tmp_path / f"{name}.crt")]
            arguments += ["--client-key", str(tmp_path / f"{name}.key")]
        envoy = await mesh.envoy(render(envoy_flags.parse(arguments)))
        async with client.post(envoy.url(), data=b"x") as answer:
            assert answer.status == status, name


@TRANSPORTS
async def test_a_rejection_is_what_the_client_sees(mesh: Mesh) -> None:
    mesh.director.outcome = Rejection(429, "saturated", "later", reason="rejected-saturated", retry_after=3)
    envoy = await mesh.envoy(render(_settings(await mesh.picker())))
    async with (await mesh.client()).post(envoy.url(), data=b"x") as answer:
        assert answer.status == 429
        assert 3 <= int(answer.headers["retry-after"]) <= 6
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        assert (await answer.json())["error"]["message"] == "later"


@TRANSPORTS
@pytest.mark.parametrize("mode", ["BUFFERED", "STREAMED", "NONE"])
async def test_other_body_modes(mesh: Mesh, picking: Any, mode: str) -> None:
    _, _, envoy, client = await mesh.open(picking, request_body=mode)
    for size in (0, 1_000, 300_000):
        body = bytes(size)
        async with client.post(envoy.url(), data=body) as answer:
            assert (await answer.json())["sha256"] == hashlib.sha256(body).hexdigest()
    seen = {None if body is None else len(body) for _, body, _ in mesh.director.directed}
    assert seen == ({0, 1_000, 300_000} if mode == "BUFFERED" else {0, None})


async def test_a_body_that_envoy_shows_a_part_of_is_routed_by_its_headers(mesh: Mesh, picking: Any) -> None:
    _, _, envoy, client = await mesh.open(picking, request_body="BUFFERED_PARTIAL", retry_buffer=2**20)
    for size in (1_000, 3_000_000):
        body = bytes(size)
        async with client.post(envoy.url(), data=io.BytesIO(body)) as answer:
            assert (await answer.json())["sha256"] == hashlib.sha256(body).hexdigest()
    assert [body for _, body, _ in mesh.director.directed] == [bytes(1_000), None]


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED", "NONE"])
async def test_a_websocket_passes(mesh: Mesh, picking: Any, mode: str) -> None:
    worker, picker = await mesh.worker(), await mesh.picker()
    mesh.director.outcome = picking(worker.destination)
    config = bootstrap(_settings(picker, request_body=mode))
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    chain["filters"][0]["typed_config"]["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    envoy = await mesh.envoy(yaml.safe_dump(config))
    client = await mesh.client()
    async with asyncio.timeout(90), client.ws_connect(envoy.url("/ws")) as socket:
        for word in ("one", "x" * 100_000, "three"):
            await socket.send_str(word)
            assert await socket.receive_str() == word


@pytest.mark.parametrize("told", ["auto", "ext-proc", "listed"])
async def test_ordered_fallback_subset_and_served_endpoint(mesh: Mesh, picking: Any, told: str) -> None:
    """The picker hears who served, as the protocol demands, in each form: by the log, by ext_proc, and where Envoy has a list."""
    workers = [await mesh.worker() for _ in range(2)]
    with socket.socket() as dead:  # bound, not listening: connections are refused
        dead.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{dead.getsockname()[1]}"
        mesh.director.outcome = picking(gone, workers[1].destination)
        picker = await mesh.picker()
        hosts = [Address.parse(one) for one in (gone, *(worker.destination for worker in workers))]
        known = sorted(LbEndpoint("", one.host, one.port) for one in hosts)
        picker.transport.assignments.publish(Assignment(tuple(known)))
        settings = _settings(
            picker,
            endpoints=hosts if told == "listed" else (),
            outcomes="auto" if told == "listed" else told,
            subset=(gone, workers[1].destination),
        )
        assert settings.by_access_log is (told == "auto")
        envoy = await mesh.envoy(render(settings))
        client = await mesh.client()
        for _ in range(6):
            async with client.post(envoy.url(), data=b"x") as answer:
                assert (await answer.json())["port"] == workers[1].port
    await eventually(lambda: len(mesh.director.released) == 6)
    assert mesh.director.reported == [workers[1].destination] * 6
    subset = mesh.director.directed[0][2]
    assert [subset.allows("127.0.0.1", worker.port) for worker in workers] == [False, True]


async def test_exact_mode_holds_the_stream_until_the_answer_ends(mesh: Mesh, picking: Any) -> None:
    worker, picker, envoy, client = await mesh.open(picking, response_trailer="SEND")
    async with client.get(envoy.url("/stream")) as answer:
        assert await answer.content.readline() == b"data: first\n"
        assert picker.transport.open_streams == 1
        assert mesh.director.released == []
        worker.go_on.set()
        await answer.read()
    await eventually(lambda: mesh.director.released)


@TRANSPORTS
async def test_drain_in_exact_mode_cuts_no_answer(mesh: Mesh, picking: Any) -> None:
    worker, picker, envoy, client = await mesh.open(picking, response_trailer="SEND")
    async with client.get(envoy.url("/stream")) as answer:
        assert await answer.content.readline() == b"data: first\n"
        picker.transport.drain()
        async with asyncio.timeout(90):
            await picker.listener.drain(30)
        worker.go_on.set()
        assert (await answer.read()).endswith(b"data: last\n\n")


@TRANSPORTS
async def test_a_drain_loses_nothing_of_answers_that_pass_through_the_picker(
    mesh: Mesh, picking: Any
) -> None:
    """What Envoy has sent to the picker, and not got back when the stream ends, is in no answer."""
    passing = {"response_body": "FULL_DUPLEX_STREAMED", "response_trailer": "SEND"}
    _, picker, envoy, client = await mesh.open(picking, **passing)
    expected = hashlib.sha256(b"".join(b"%07d\n" % number * 500 for number in range(FLOOD))).hexdigest()
    begun = asyncio.Event()

    async def ask() -> str:
        digest = hashlib.sha256()
        async with client.get(envoy.url("/flood")) as answer:
            async for piece in answer.content.iter_any():
                digest.update(piece)
                begun.set()
        return digest.hexdigest()

    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        asking = [group.create_task(ask()) for _ in range(4)]
        await begun.wait()
        picker.transport.drain()
    assert [task.result() for task in asking] == [expected] * 4


@TRANSPORTS
async def test_a_fault_of_the_picker_is_a_503_and_hangs_nothing(mesh: Mesh) -> None:
    mesh.director.outcome = ZeroDivisionError()
    envoy = await mesh.envoy(render(_settings(await mesh.picker())))
    async with asyncio.timeout(90), (await mesh.client()).post(envoy.url(), data=b"x") as answer:
        assert answer.status == 503


@pytest.mark.parametrize("mode", ["original-dst", "override-host"])
async def test_without_a_picker_a_clients_own_destination_steers_nothing(mesh: Mesh, mode: str) -> None:
    workers = [await mesh.worker() for _ in range(2)]
    picker = await mesh.picker()
    known = () if mode == "original-dst" else (Address("127.0.0.1", workers[0].port),)
    settings = _settings(picker, mode=mode, endpoints=known, failure_mode_allow=True)
    envoy = await mesh.envoy(render(settings))
    await picker.listener.drain(None)
    headers = {"x-gateway-destination-endpoint": workers[1].destination}
    async with (await mesh.client()).get(envoy.url(), headers=headers) as answer:
        assert answer.status == (503 if mode == "original-dst" else 200)
        assert mode == "original-dst" or (await answer.json())["port"] == workers[0].port


async def test_without_a_picker_a_request_with_a_body_goes_on_too(mesh: Mesh) -> None:
    """Once the health checks have noticed: until then its body is on the way to the picker."""
    worker, picker = await mesh.worker(), await mesh.picker()
    known = (Address("127.0.0.1", worker.port),)
    settings = _settings(picker, mode="override-host", endpoints=known, failure_mode_allow=True)
    envoy = await mesh.envoy(render(settings))
    client = await mesh.client()
    await picker.listener.drain(None)

    async def served() -> bool:
        async with client.post(envoy.url(), json={"model": "m", "prompt": "hello"}) as answer:
            return answer.status == 200 and (await answer.json())["port"] == worker.port

    await eventually(served)
