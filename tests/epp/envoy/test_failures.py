"""What a client sees through a real Envoy when a picker or a worker is dead or frozen."""

import asyncio
import io
import json
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config import flags
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from epp.server import PickerServer
from tests.epp.epp_program import LOCAL, epp_program
from tests.eventually import eventually
from tests.kubernetes.fake.chaos_proxy import ChaosProxy

QUIET = ("--secure-serving=false", "-v=0")
IN_RANDOM_ORDER = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: random-picker, parameters: {maxNumOfEndpoints: 2}}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
"""
PROMPT = {"model": "m", "prompt": "x"}
FROZEN = 60.0
"""Seconds that a request may take, at most, while its picker is frozen; it takes 3 to 8."""


class Worker:
    """Answers each POST with `status` and writes down its size; with `serves_at` its metadata say that another port serves."""

    def __init__(self, status: int = 200, serves_at: int | None = None) -> None:
        self.status = status
        self.resets = False
        self.killed: asyncio.Event | None = None
        self.serves_at = serves_at
        self.bodies: list[int] = []
        self.runner = web.AppRunner(self._app())
        self.address = ""

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._answer)
        app.router.add_get("/metadata", self._metadata)
        return app

    async def _metadata(self, _: web.Request) -> web.Response:
        if self.serves_at is None:
            return web.Response(status=404)
        port = self.runner.addresses[0][1]
        return web.json_response({"transport": {"http": {"port": self.serves_at, "metrics_port": port}}})

    async def _answer(self, request: web.Request) -> web.Response:
        self.bodies.append(len(await request.read()))
        if self.killed is not None:
            await self.killed.wait()
        if self.resets:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"served": self.address}, status=self.status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Worker"]:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self.runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await self.runner.cleanup()


@asynccontextmanager
async def picker_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`python -m epp`, which can be killed, and the address of its gRPC port."""
    async with epp_program(*LOCAL, *QUIET, *arguments) as running:
        assert running.stdout is not None
        async with asyncio.timeout(90):
            word, grpc, *_ = (await running.stdout.readline()).decode().split()
        assert word == "ready"
        yield running, grpc.partition("=")[2]


class Mesh:
    """Opens what a test needs and closes it in the end."""

    def __init__(self, stack: AsyncExitStack, running_envoy: Any) -> None:
        self._stack = stack
        self._running_envoy = running_envoy

    async def worker(self, status: int = 200, serves_at: int | None = None) -> Worker:
        return await self._stack.enter_async_context(Worker(status, serves_at).serving())

    async def refusing(self) -> tuple[Worker, int]:
        """One that the picker sees well, while connections to its port that serves are refused; and that port."""
        dead = self._stack.enter_context(socket.socket())  # bound, not listening
        dead.bind(("127.0.0.1", 0))
        port: int = dead.getsockname()[1]
        return await self.worker(serves_at=port), port

    async def picker(self, workers: Sequence[str], *arguments: str) -> str:
        """The address of a picker in this process."""
        settings, _, _ = flags.parse([*LOCAL, *QUIET, *_listed(workers), *arguments])
        server = await self._stack.enter_async_context(PickerServer(settings))
        return server.ready_line.split()[1].partition("=")[2]

    async def mortal(self, workers: Sequence[str], *arguments: str) -> tuple[asyncio.subprocess.Process, str]:
        """A picker that is a process of its own, and its address."""
        return await self._stack.enter_async_context(picker_process(*_listed(workers), *arguments))

    async def envoy(self, pickers: Sequence[str], *arguments: str, waits: bool = True) -> Any:
        asked = [word for address in pickers for word in ("--epp", address)]
        where = ("--listen-port", "0", "--admin-port", "0", "--secure=false")
        config = render(envoy_flags.parse([*asked, *where, *arguments]))
        return await self._stack.enter_async_context(self._running_envoy(config, waits=waits))

    async def client(self) -> aiohttp.ClientSession:
        return await self._stack.enter_async_context(aiohttp.ClientSession())

    async def choosing(self, mode: str, workers: Sequence[str], serving: Sequence[str], *more: str) -> Any:
        """An Envoy in this mode; its picker names two `workers` in any order, of which `serving` are the addresses."""
        version = "0.3.0" if mode == "original-dst" else "1.0.0"
        address = await self.picker(workers, "--config-text", IN_RANDOM_ORDER, "--protocol-version", version)
        hosts = [word for one in serving for word in ("--endpoint", one)]
        options = {"original-dst": ("--mode", mode, "--fallback"), "override-host": hosts, "default": ()}[
            mode
        ]
        return await self.envoy([address], *options, *more)


@pytest.fixture
async def mesh(running_envoy: Any) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        yield Mesh(stack, running_envoy)


def _listed(workers: Sequence[str]) -> list[str]:
    return [f"--endpoint={address}" for address in workers]


async def ask(client: aiohttp.ClientSession, envoy: Any, body: Any = PROMPT) -> tuple[int, Any, Any]:
    """Status, body and headers."""
    async with asyncio.timeout(FROZEN), client.post(envoy.url("/v1/completions"), json=body) as answer:
        return answer.status, await answer.json(content_type=None), answer.headers


def _refusal(said: Any) -> str:
    """The code of an OpenAI-style error."""
    assert said is not None, "an empty body"
    assert set(said["error"]) == {"message", "type", "param", "code"}
    code: str = said["error"]["code"]
    return code


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.timeout(2 * FROZEN)
async def test_the_only_picker_is_gone(mesh: Mesh, how: signal.Signals) -> None:
    """The client learns it, in the words of the API that it speaks."""
    worker = await mesh.worker()
    running, address = await mesh.mortal([worker.address])
    envoy, client = await mesh.envoy([address], waits=False), await mesh.client()
    assert (await ask(client, envoy))[0] == 200
    running.send_signal(how)
    for status, said, headers in await asyncio.gather(*(ask(client, envoy) for _ in range(5))):
        assert (status, _refusal(said)) == (503, "picker_unavailable")
        assert headers["retry-after"] == "1"
        assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.timeout(2 * FROZEN)
async def test_of_two_pickers_one_is_gone_and_no_request_fails(mesh: Mesh, how: signal.Signals) -> None:
    worker = await mesh.worker()
    (first, one), (_, other) = [await mesh.mortal([worker.address]) for _ in range(2)]
    envoy, client = await mesh.envoy([one, other], waits=how is signal.SIGKILL), await mesh.client()
    assert {(await ask(client, envoy))[0] for _ in range(10)} == {200}
    first.send_signal(how)
    asked = [ask(client, envoy) for _ in range(10)] + [
        ask(client, envoy, {"model": "m", "prompt": "x" * 30_000}) for _ in range(10)
    ]
    large = [ask(client, envoy, {"model": "m", "prompt": "x" * 1_000_000}) for _ in range(4)]
    answered, larger = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*large))
    assert [status for status, _, _ in answered] == [200] * 20
    assert {status for status, _, _ in larger} <= {200, 503}, "Envoy does not keep them for another attempt"
    assert {size // 1_000 for size in worker.bodies} <= {0, 30, 1_000}, "whole, or not at all"


async def test_a_pick_outlasts_two_connections_that_end_one_after_another(mesh: Mesh) -> None:
    """As those of a killed process do on a busy machine: Envoy asks again while the second one still stands."""
    worker = await mesh.worker()
    address = await mesh.picker([worker.address])
    host, _, port = address.rpartition(":")
    async with ChaosProxy((host, int(port))) as between:
        envoy = await mesh.envoy([f"127.0.0.1:{between.port}"], "--outcomes=ext-proc")
        client = await mesh.client()
        assert (await ask(client, envoy))[0] == 200
        between.ends = 2
        assert (await ask(client, envoy))[0] == 200
        assert between.ends == 0


@pytest.mark.parametrize("mode", ["original-dst", "override-host"])
async def test_a_worker_that_is_killed_costs_no_request(mesh: Mesh, mode: str) -> None:
    """Connections to it are refused, and the picker has not heard of it yet: the second choice gets the request."""
    worker, (killed, port) = await mesh.worker(), await mesh.refusing()
    serving = [worker.address, f"127.0.0.1:{port}"]
    envoy = await mesh.choosing(mode, [worker.address, killed.address], serving)
    client = await mesh.client()
    answered = [await ask(client, envoy) for _ in range(60)]
    assert [status for status, _, _ in answered] == [200] * 60
    served = {headers["x-gateway-destination-endpoint-served"] for _, _, headers in answered}
    assert served == {worker.address}
    assert len(worker.bodies) == 60
    async with client.get(f"{envoy.admin}/stats?filter=workers.upstream_rq_retry_success") as page:
        assert int((await page.text()).split()[-1]) > 0, "about half of the requests are refused once"


@pytest.mark.parametrize("mode", ["original-dst", "override-host"])
async def test_a_reset_after_the_whole_request_costs_none_that_envoy_kept(mesh: Mesh, mode: str) -> None:
    """What a kill looks like while the worker computes the answer. Both workers see the whole body."""
    killed, worker = await mesh.worker(), await mesh.worker()
    killed.resets, addresses = True, [killed.address, worker.address]
    envoy = await mesh.choosing(mode, addresses, addresses, "--retry-buffer", "4Mi")
    client = await mesh.client()
    for size, served in ((100, True), (3_000_000, True), (5_000_000, False)):
        body = json.dumps({"model": "m", "prompt": "x" * size}).encode()
        killed.bodies.clear()
        while not killed.bodies:  # it is the first choice of about half of the requests
            worker.bodies.clear()
            async with (
                asyncio.timeout(FROZEN),
                client.post(envoy.url("/v1/completions"), data=io.BytesIO(body)) as answer,
            ):
                status = answer.status
        assert status == (200 if served else 502)
        assert [total // 1_000_000 for total in killed.bodies] == [size // 1_000_000]
        assert worker.bodies == (killed.bodies if served else [])


@pytest.mark.parametrize("mode", ["original-dst", "override-host", "default"])
async def test_all_requests_that_a_killed_worker_had_go_to_another_at_the_same_time(
    mesh: Mesh, mode: str
) -> None:
    """Envoy's default is at most three retries at a time."""
    killed, worker = await mesh.worker(), await mesh.worker()
    killed.resets, killed.killed = True, asyncio.Event()
    addresses = [killed.address, worker.address]
    envoy, client = await mesh.choosing(mode, addresses, addresses), await mesh.client()
    asked = [asyncio.ensure_future(ask(client, envoy)) for _ in range(60)]
    await eventually(lambda: len(killed.bodies) + len(worker.bodies) == 60)
    assert len(killed.bodies) > 3
    killed.killed.set()
    assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 60


async def test_without_a_second_choice_the_client_learns_that_no_worker_is_reached(mesh: Mesh) -> None:
    killed, _ = await mesh.refusing()
    address = await mesh.picker([killed.address])
    status, said, headers = await ask(await mesh.client(), await mesh.envoy([address]))
    assert (status, _refusal(said)) == (503, "worker_unreachable")
    assert headers["retry-after"] == "1"
    assert "x-gateway-destination-endpoint-served" not in headers


async def test_what_a_worker_has_refused_is_not_sent_again(mesh: Mesh) -> None:
    """It may have worked on it: an answer that is made twice is paid twice. Its own words reach the client."""
    workers = [await mesh.worker() for _ in range(2)]
    addresses = [worker.address for worker in workers]
    hosts = [word for at in addresses for word in ("--endpoint", at)]
    envoy = await mesh.envoy([await mesh.picker(addresses)], "--mode", "override-host", *hosts)
    client = await mesh.client()
    for number, status in enumerate((500, 502, 504), 1):
        for worker in workers:
            worker.status = status
        answered, said, headers = await ask(client, envoy)
        assert (answered, said["served"]) == (status, headers["x-gateway-destination-endpoint-served"])
        assert sum(len(worker.bodies) for worker in workers) == number


async def test_every_answer_tells_the_id_of_its_request(mesh: Mesh) -> None:
    """A worker's, the picker's, and Envoy's own if no worker or no picker is there; a client's id comes back as it was."""
    worker, (gone, _) = await mesh.worker(), await mesh.refusing()
    serving = await mesh.picker([worker.address])
    refusing = await mesh.picker([worker.address], "--model", "known")
    unreached = await mesh.picker([gone.address])
    client, own = await mesh.client(), "0af7651916cd43dd-8448eb211c80319c"
    uuid = "6f1f8e0e-2f0c-4f58-a4d5-0d6c3b1b2a61"
    for picker, status in ((serving, 200), (refusing, 404), (unreached, 503), ("127.0.0.1:9", 503)):
        url = (await mesh.envoy([picker])).url("/v1/completions")
        for sent, told in ((own, own), (uuid, uuid), ("x" * 5_000, "x" * 200), (None, None)):
            headers = {} if sent is None else {"x-request-id": sent}
            async with client.post(url, json=PROMPT, headers=headers) as answer:
                assert answer.status == status
                (said,) = answer.headers.getall("x-request-id")
                assert said == told if told is not None else len(said) == len(uuid)


async def test_the_access_log_tells_who_was_picked_and_who_served(mesh: Mesh, tmp_path: Path) -> None:
    worker, log = await mesh.worker(), tmp_path / "access.log"
    address = await mesh.picker([worker.address])
    envoy, client = await mesh.envoy([address], "--access-log", str(log)), await mesh.client()
    url = envoy.url("/v1/completions?key=secret")
    async with client.post(url, json=PROMPT) as answer:
        assert answer.headers["x-gateway-destination-endpoint-served"] == worker.address
    await eventually(lambda: log.exists() and log.read_text(), within=90)  # Envoy writes it every 10 s
    line = json.loads(log.read_text())
    assert (line["picked"], line["served"], line["status"]) == (worker.address, worker.address, 200)
    assert (line["path"], line["attempts"]) == ("/v1/completions", 1)
