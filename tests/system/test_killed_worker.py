"""SIGKILL of a worker under load, through a real Envoy: no request that had not begun to stream fails."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from tests.epp.conftest import envoy_running
from tests.eventually import eventually
from tests.started import next_line, started

WORKERS = 4
PICKER = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: least-cost-scorer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: least-cost-scorer}, {pluginRef: max-score-picker}]}
"""


@dataclass
class Program:
    process: asyncio.subprocess.Process
    ready: dict[str, str]


@asynccontextmanager
async def program(module: str, *arguments: str) -> AsyncIterator[Program]:
    """`python -m module`, and what its ready line says."""
    nowhere = asyncio.subprocess.DEVNULL
    async with started(sys.executable, "-m", module, *arguments, stderr=nowhere) as process:
        while not (line := await next_line(process)).startswith("ready"):
            assert line, f"{module} ended"
        yield Program(process, dict(word.split("=", 1) for word in line.split()[1:]))


@dataclass
class Cluster:
    """Workers, a picker and Envoy, which hears of the workers from the picker or from a file."""

    stack: AsyncExitStack
    root: Path
    workers: list[Program] = field(default_factory=list)
    url: str = ""
    admin: str = ""

    @property
    def where(self) -> Sequence[str]:
        return ("--discovery", f"file://{self.root}/workers")

    async def worker(self, number: int) -> None:
        known = ("--namespace", "prod", "--component", "decode", "--instance-id", f"worker-{number}")
        started = program("examples.simulator", *self.where, *known)
        self.workers.append(await self.stack.enter_async_context(started))

    async def start(self, how: str, *, workers: int = WORKERS, config: str = PICKER) -> None:
        (self.root / "workers").mkdir(mode=0o700)
        await asyncio.gather(*(self.worker(number) for number in range(workers)))
        listen = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
        known = ("--namespace", "prod", "--component", "decode", "--config-text", config)
        picker = await self.stack.enter_async_context(
            program("epp", *self.where, *listen, *known, "--secure-serving=false", "-v", "0")
        )
        hosts = [] if how == "picker" else await self._file()
        asked = ["--epp", picker.ready["grpc"], "--listen-port", "0", "--admin-port", "0", "--secure=false"]
        asked += ["--access-log", ""]
        config = render(envoy_flags.parse([*asked, *hosts]))
        envoy = await self.stack.enter_async_context(envoy_running(config))
        self.url, self.admin = envoy.url("/v1/completions"), envoy.admin

    async def _file(self) -> Sequence[str]:
        file = str(self.root / "endpoints.json")
        writing = program("discovery", "eds", "prod", "decode", *self.where, "--out", file)
        await self.stack.enter_async_context(writing)
        return ["--eds-file", file]

    async def hosts(self, client: aiohttp.ClientSession) -> set[str]:
        async with client.get(f"{self.admin}/clusters?format=json") as answer:
            clusters = (await answer.json(content_type=None))["cluster_statuses"]
        addresses = [
            host["address"]["socket_address"]
            for cluster in clusters
            if cluster["name"] == "listed"
            for host in cluster.get("host_statuses", [])
        ]
        return {f"{address['address']}:{address['port_value']}" for address in addresses}


@dataclass
class Told:
    """What one user saw. `begun`: the response headers came."""

    begun: bool = False
    failure: str | None = None


class Users:
    """Each with one request at a time: two plain ones and a stream, in turn."""

    def __init__(self, cluster: Cluster, client: aiohttp.ClientSession) -> None:
        self.told: list[Told] = []
        self.stopping = False
        self._cluster = cluster
        self._client = client

    async def run(self, user: int) -> None:
        number = user
        while not self.stopping:
            number += 1
            told = Told()
            self.told.append(told)
            prompt = f"user {user} " * 20
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 40, "stream": number % 3 == 0}
            try:
                await self._ask(told, body)
            except (aiohttp.ClientError, OSError) as error:
                told.failure = f"{type(error).__name__}: {error}"

    async def _ask(self, told: Told, body: dict[str, Any]) -> None:
        async with asyncio.timeout(90), self._client.post(self._cluster.url, json=body) as answer:
            told.begun = True
            text = await answer.text()
            if answer.status != 200:
                told.begun, told.failure = False, f"{answer.status} {text}"
            elif body["stream"] and not text.rstrip().endswith("[DONE]"):
                told.failure = "cut"
            elif not body["stream"]:
                json.loads(text)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(stack, tmp_path)


@pytest.mark.parametrize("how", ["picker", "file"])
async def test_no_request_fails_that_had_not_begun_to_stream(cluster: Cluster, how: str) -> None:
    await cluster.start(how)
    client = await cluster.stack.enter_async_context(aiohttp.ClientSession())
    await eventually(lambda: _has(cluster, client, WORKERS))
    users = Users(cluster, client)
    async with asyncio.TaskGroup() as tasks:
        for user in range(24):
            tasks.create_task(users.run(user))
        for worker in cluster.workers[:2]:
            before = len(users.told)
            await eventually(lambda before=before: len(users.told) > before + 50)
            worker.process.send_signal(signal.SIGKILL)
        await eventually(lambda: _has(cluster, client, WORKERS - 2))
        before = len(users.told)
        await eventually(lambda: len(users.told) > before + 50)
        users.stopping = True
    lost = [told.failure for told in users.told if told.failure and not told.begun]
    assert lost == []
    cut = [told for told in users.told if told.failure]
    assert len(cut) <= 24, "those that were streaming"
    async with client.get(f"{cluster.admin}/stats?filter=workers.upstream_rq_retry_success") as page:
        assert int((await page.text()).split()[-1]) > 0, "some were at a killed worker"


async def test_a_worker_that_drains_costs_nothing_at_all(cluster: Cluster) -> None:
    """It stays a host of Envoy until it has left; what it streams then goes on to its end."""
    await cluster.start("picker")
    client = await cluster.stack.enter_async_context(aiohttp.ClientSession())
    await eventually(lambda: _has(cluster, client, WORKERS))
    users = Users(cluster, client)
    async with asyncio.TaskGroup() as tasks:
        for user in range(24):
            tasks.create_task(users.run(user))
        for worker in cluster.workers[:2]:
            before = len(users.told)
            await eventually(lambda before=before: len(users.told) > before + 50)
            worker.process.send_signal(signal.SIGTERM)
            await worker.process.wait()
        await eventually(lambda: _has(cluster, client, WORKERS - 2))
        users.stopping = True
    assert [told.failure for told in users.told if told.failure] == []


async def test_requests_that_waited_for_the_first_worker_reach_it(cluster: Cluster) -> None:
    """The picker lets them go when the worker is ready; Envoy must know it by then."""
    waiting = "featureGates: [flowControl]\nflowControl: {noEndpointRequestTTL: 90s}\n"
    await cluster.start("picker", workers=0, config=PICKER + waiting)
    client = await cluster.stack.enter_async_context(aiohttp.ClientSession())
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 2}

    async def ask() -> int:
        async with asyncio.timeout(120), client.post(cluster.url, json=body) as answer:
            return answer.status

    for number in range(3):
        asked = [asyncio.ensure_future(ask()) for _ in range(50)]
        await asyncio.sleep(0.5)
        await cluster.worker(number)
        assert await asyncio.gather(*asked) == [200] * 50
        cluster.workers.pop().process.send_signal(signal.SIGKILL)
        await eventually(lambda: _has(cluster, client, 0))


async def _has(cluster: Cluster, client: aiohttp.ClientSession, number: int) -> bool:
    return len(await cluster.hosts(client)) == number
