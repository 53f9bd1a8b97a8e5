"""Simulators that can fail, a picker of them, and an Envoy, all started anew for each run."""

import asyncio
import contextlib
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import aiohttp
import yaml

from benchmarks.envoy_process import envoy
from benchmarks.failing.arms import FailingArm
from benchmarks.failing.scenarios import WORKERS, FailingWorker
from benchmarks.picking.pickers import started
from epp.envoy.config import bootstrap
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings

_HOST: Final = "127.0.0.1"
_DEADLINE: Final = 150.0
_READY: Final = rb"http=[^ ]+:(\d+)"
_SETTLE: Final = 1.0
"""Seconds in which the picker reads the pages of all workers."""


@dataclass(frozen=True, slots=True)
class FailingStage:
    """A pool behind an Envoy that listens on `port` of this machine."""

    port: int
    workers: list[FailingWorker]
    metrics: int
    """The picker's metrics port."""

    async def ejections(self) -> Counter[str]:
        """How many since the picker began, by cause; none where it ejects nobody."""
        url = f"http://{_HOST}:{self.metrics}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            page = await answer.text()
        found = re.findall(r"_ejections_total\{.*cause=\"(\w+)\".*\} (.*)", page)
        return Counter({f"healthy worker ejected: {cause}": int(float(count)) for cause, count in found})


@contextlib.asynccontextmanager
async def failing_stage(arm: FailingArm, count: int = WORKERS) -> AsyncIterator[FailingStage]:
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        workers = list(await asyncio.gather(*[enter(_worker(number)) for number in range(count)]))
        where = "static://" + ",".join(f"{_HOST}:{worker.port}" for worker in workers)
        program = [sys.executable, "-m", "epp", "--discovery", where, f"--host={_HOST}", "-v=0"]
        program += ["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false"]
        program += [] if arm.config is None else ["--config-text", arm.config]
        picker = await enter(started(program, None))
        port, metrics = await _ports(picker, rb" grpc=[^ ]+:(\d+).* metrics=[^ ]+:(\d+)")
        settings = EnvoySettings(
            listen=Address(_HOST, 0),
            admin=Address(_HOST, 0),
            pickers=(Address(_HOST, port),),
            secure=False,
            access_log="",
            mode="override-host" if arm.fallbacks else "original-dst",
            outcomes=arm.outcomes,
        )
        _, listens = await enter(envoy(yaml.safe_dump(bootstrap(settings))))
        await asyncio.sleep(_SETTLE)
        yield FailingStage(listens, workers, metrics)


@contextlib.asynccontextmanager
async def _worker(number: int) -> AsyncIterator[FailingWorker]:
    options = ("--no-register", "--faults", "--instance-id", f"w{number}")
    async with started((sys.executable, "-m", "examples.simulator", *options), None) as process:
        [port] = await _ports(process, _READY)
        yield FailingWorker(process.pid, port)


async def _ports(process: asyncio.subprocess.Process, pattern: bytes) -> list[int]:
    assert process.stdout is not None
    async with asyncio.timeout(_DEADLINE):
        found = re.search(pattern, await process.stdout.readline())
    assert found is not None
    return [int(port) for port in found.groups()]
