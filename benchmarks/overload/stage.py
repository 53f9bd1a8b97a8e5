"""Three simulators, an API server with their Pods, a picker, and an Envoy in front of it, all started anew for each run.

The Go picker takes priorities from InferenceObjectives alone, so both pickers read their pool from an API server.
"""

import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from grpc import aio

from benchmarks.envoy_process import envoy
from benchmarks.overload.arms import Arm
from benchmarks.overload.load import MACHINE, PRIORITIES, WORKERS
from benchmarks.picking.pickers import started
from benchmarks.ports import free_ports
from epp.envoy.config import bootstrap
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings
from epp.ext_proc.protocol import EXT_PROC
from epp.wire.messages.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.objects import inference_pool, pod

_HOST: Final = "127.0.0.1"
_POOL: Final = "overload"
_LABELS: Final = {"app": "simulator"}
_DEADLINE: Final = 150.0
_SIMULATOR: Final = (
    "--no-register",
    *("--max-num-seqs", str(MACHINE.max_num_seqs)),
    *("--step-seconds", str(MACHINE.step_seconds)),
    *("--token-seconds", str(MACHINE.token_seconds)),
)
_PICKER: Final = ("--pool-name", _POOL, "--pool-namespace", "default", "--metrics-endpoint-auth=false")
_GO: Final = ("--tracing=false", "--zap-log-level=error", "--allow-experimental-plugins")
_PER_ENDPOINT: Final = "\nllm_d_epp_per_endpoint_queue_size{"
_OUTSTANDING: Final = (
    "llm_d_epp_flow_control_queue_size",
    "llm_d_epp_flow_control_queue_bytes",
    "llm_d_epp_inflight_requests",
    "llm_d_epp_per_endpoint_inflight_requests",
    "llm_d_epp_request_running",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)
"""Gauges that are 0 when nobody asks for anything. A picker need not have them all."""


class Pool:
    """The workers as Kubernetes knows them: all are there at once, or they come one by one."""

    def __init__(self, api: FakeApi, port: int) -> None:
        self._api = api
        self._port = port

    def add(self, number: int) -> None:
        ports = {"http": self._port}
        self._api.put("pods", pod(f"w{number}", _address(number), labels=_LABELS, ports=ports))


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs. `port`: Envoy's. `pages`: the metrics of the picker, then those of the workers."""

    port: int
    picker: int
    pool: Pool
    pages: Sequence[str]

    async def until_ready(self, endpoints: int) -> None:
        """Returns when the picker has read the page of so many endpoints; raises TimeoutError."""
        async with asyncio.timeout(_DEADLINE):
            while True:
                page = await self.page(0)
                if page and page.count(_PER_ENDPOINT) >= endpoints:
                    return
                await asyncio.sleep(0.05)

    async def page(self, number: int) -> str:
        """ "" for a page that is not there."""
        with contextlib.suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(self.pages[number]) as answer:
                return await answer.text()
        return ""

    async def outstanding(self) -> dict[str, float]:
        """What is not 0 and should be where nobody asks for anything, by the name of its gauge."""
        found: dict[str, float] = {}
        for number in range(len(self.pages)):
            found |= totals(await self.page(number), _OUTSTANDING)
        return {name: value for name, value in found.items() if value}


def totals(page: str, names: Sequence[str]) -> dict[str, float]:
    """The sums over all series of these names, of those that the page has."""
    found: dict[str, float] = {}
    for line in page.split("\n"):
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in names:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


@contextlib.asynccontextmanager
async def stage(arm: Arm, *, workers_at_first: int = WORKERS) -> AsyncIterator[Stage]:
    """A picker that knows `workers_at_first` of the simulators, all of which run, and Envoy."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, grpc, health, metrics = free_ports(4)
        await asyncio.gather(*[enter(_simulator(number, port)) for number in range(WORKERS)])
        api = _api(port)
        pool = Pool(api, port)
        for number in range(workers_at_first):
            pool.add(number)
        server = await enter(FakeApiServer(api))
        process = await enter(_picker(arm, folder, server.url, (grpc, health, metrics)))
        await _until_serving(health)  # Envoy asks it seldom
        addresses = [Address(_address(number), port) for number in range(WORKERS)]
        _, listens = await enter(envoy(yaml.safe_dump(_envoy(arm, addresses, grpc))))
        pages = [f"http://{host}/metrics" for host in (f"{_HOST}:{metrics}", *map(str, addresses))]
        found = Stage(listens, process.pid, pool, pages)
        await found.until_ready(workers_at_first)
        yield found


async def _until_serving(port: int) -> None:
    async with aio.insecure_channel(f"{_HOST}:{port}") as channel, asyncio.timeout(_DEADLINE):
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        while True:
            answer = await check(HealthCheckRequest(service=EXT_PROC), wait_for_ready=True)
            if answer.status == HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.05)


def _address(number: int) -> str:
    return f"127.0.0.{number + 2}"  # all Pods of a pool serve on one port


def _api(port: int) -> FakeApi:
    api = FakeApi()
    # Go's decoder of gzip waits for more than a watch that is compressed line by line has to say
    api.watch_list = False
    api.put("inferencepools", inference_pool(_POOL, port, labels=_LABELS))
    reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": _POOL}
    for name, priority in PRIORITIES.items():
        spec: dict[str, Any] = {"priority": priority, "poolRef": reference}
        api.put("inferenceobjectives", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    return api


@contextlib.asynccontextmanager
async def _simulator(number: int, port: int) -> AsyncIterator[None]:
    options = ("--host", _address(number), "--port", str(port), "--instance-id", f"w{number}", *_SIMULATOR)
    async with started((sys.executable, "-m", "examples.simulator", *options), None) as process:
        assert process.stdout is not None
        async with asyncio.timeout(_DEADLINE):
            assert (await process.stdout.readline()).startswith(b"ready")
        yield


@contextlib.asynccontextmanager
async def _picker(
    arm: Arm, folder: Path, api: str, ports: tuple[int, int, int]
) -> AsyncIterator[asyncio.subprocess.Process]:
    config, kubeconfig = folder / "config.yaml", folder / "kubeconfig"
    config.write_text(arm.config)
    kubeconfig.write_text(_kubeconfig(api))
    named = zip(("grpc-port", "grpc-health-port", "metrics-port"), ports, strict=True)
    flags = [f"--{name}={port}" for name, port in named]
    flags += ["--secure-serving=false", f"--config-file={config}", *_PICKER]
    if arm.binary is None:
        program = [sys.executable, "-m", "epp", f"--host={_HOST}", "-v=0", *flags]
    else:
        program = [str(arm.binary), *flags, *_GO]
    async with started(program, None, silent=arm.binary is not None, KUBECONFIG=str(kubeconfig)) as process:
        yield process


def _kubeconfig(url: str) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
        "current-context": "here",
    }
    return yaml.safe_dump(document)


def _envoy(arm: Arm, workers: Sequence[Address], picker: int) -> Any:
    settings = EnvoySettings(
        mode="override-host",
        listen=Address(_HOST, 0),
        admin=Address(_HOST, 0),
        pickers=(Address(_HOST, picker),),
        endpoints=workers,
        response_body=arm.response_body,
        response_trailer=arm.response_trailer,
        secure=False,
        access_log="",
    )
    return bootstrap(settings)
