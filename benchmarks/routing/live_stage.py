"""One run in real time: simulators, pickers and their Envoys are started anew, the users ask, and things happen to workers."""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.envoy_process import envoy
from benchmarks.picking.pickers import picker
from benchmarks.ports import free_ports
from benchmarks.process_usage import processor_seconds
from benchmarks.routing.figures import Answer
from benchmarks.routing.live_arms import LiveArm
from benchmarks.routing.live_client import Asking, Users, session
from benchmarks.routing.live_workers import Worker, Workers
from benchmarks.routing.workloads import BASE_MODEL, Event, Turn, Workload
from epp.envoy.config import bootstrap
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings

_HOST = "127.0.0.1"
_SETTLE = 0.3
"""Seconds from the last program's readiness to the first request; both pickers read each page several times in it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened. `late`: simulated seconds by which each request left late. `cores`: what each kind of process used on
    average, in cores; `machine`: all that ran on the machine, in cores. `seconds`: real ones."""

    answers: list[Answer]
    late: list[float]
    cores: Mapping[str, float]
    machine: float
    seconds: float


async def run(
    simulators: Workers, arm: LiveArm, workload: Workload, turns: Sequence[Turn], speed: float
) -> Outcome:
    """Sends `turns` and waits for the end of all answers."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        workers = await enter(simulators.workers(workload, _adapters(turns), speed))
        pool = _Pool(workers, workload, stack.enter_context(tempfile.TemporaryDirectory()))
        events = await enter(published_events(workers[0].events, workload.pickers))
        peers = stack.enter_context(tempfile.TemporaryDirectory())
        fronts = [
            await enter(_front(arm, workers, pool, address, _peers(arm, peers, workload.pickers)))
            for address in events
        ]
        asking = Asking(streamed=workload.streamed, in_words=simulators.in_words)
        users = Users([front.port for front in fronts], turns, speed, asking)
        await asyncio.sleep(_SETTLE)
        usage = _Usage(
            {
                "client": [os.getpid()],
                "simulators": [worker.pid for worker in workers],
                "picker": [front.picker for front in fronts],
                "envoy": [front.envoy for front in fronts],
            }
        )
        start = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            happening = tasks.create_task(pool.happen(start, speed, usage))
            answers = await users.send(start)
            happening.cancel()
        return Outcome(answers, users.late, usage.cores(), usage.machine(), time.monotonic() - start)


@dataclass(frozen=True, slots=True)
class _Front:
    picker: int
    envoy: int
    port: int


@contextlib.asynccontextmanager
async def _front(
    arm: LiveArm, workers: Sequence[Worker], pool: "_Pool", events: str, options: Sequence[str]
) -> AsyncIterator[_Front]:
    config = arm.config.replace("ENDPOINTS", str(pool.file)).replace("EVENTS", events)
    config = config.replace("RENDER", f"http://{_HOST}:{workers[0].port}")
    async with picker(arm.kind, pool.ports(), None, options=options, config=config) as process:
        settings = EnvoySettings(
            mode="override-host",
            listen=Address(_HOST, 0),
            admin=Address(_HOST, 0),
            pickers=(Address(_HOST, process.port),),
            endpoints=[Address(_HOST, worker.port) for worker in workers],
            response_body=arm.response_body,
            response_trailer="SKIP" if arm.response_body == "NONE" else "SEND",
            secure=False,
            access_log="",
        )
        async with envoy(yaml.safe_dump(bootstrap(settings))) as (pid, port):
            yield _Front(process.pid, pid, port)


def _peers(arm: LiveArm, folder: str, pickers: int) -> Sequence[str]:
    """Several of ours know each other, as their chart has it; the Go picker cannot tell another one."""
    if pickers == 1 or arm.kind.binary is not None:
        return ()
    return f"--peers=file://{folder}", f"--peer-port={free_ports(1)[0]}"


@contextlib.asynccontextmanager
async def published_events(published: str, pickers: int) -> AsyncIterator[Sequence[str]]:
    """Where each picker reads KV events. A worker publishes to one address only: for several pickers what comes there goes on to all."""
    if pickers == 1 or not published:
        yield [published] * pickers
        return
    import zmq.asyncio

    addresses = [f"tcp://{_HOST}:{port}" for port in free_ports(pickers)]
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as workers, context.socket(zmq.PUB) as out:
        out.linger = 0
        workers.bind(published)
        workers.subscribe("")
        for address in addresses:
            out.connect(address)

        async def pass_on() -> None:
            while True:
                await out.send_multipart(await workers.recv_multipart())

        async with asyncio.TaskGroup() as tasks:
            passing = tasks.create_task(pass_on())
            yield addresses
            passing.cancel()


class _Pool:
    """The workers that pickers know of, in a file that they watch, and what happens to workers."""

    def __init__(self, workers: Sequence[Worker], workload: Workload, folder: str) -> None:
        self.file = Path(folder, "endpoints.yaml")
        self._workers = list(workers)
        self._events = sorted(workload.events, key=lambda event: event.at)
        self._listed = set(workload.there_at_the_start())
        self._write()

    def ports(self) -> list[int]:
        """Of the workers in the file."""
        return [self._workers[number].port for number in sorted(self._listed)]

    async def happen(self, start: float, speed: float, usage: "_Usage") -> None:
        """Lets each event happen when it is due."""
        for event in self._events:
            await asyncio.sleep(start + event.at / speed - time.monotonic())
            if event.what in {"kill", "restart"}:
                usage.forget(self._workers[event.worker].pid)
            if event.what == "restart":
                await self._restart(event.worker)
            else:
                self._apply(event)

    async def _restart(self, number: int) -> None:
        again = self._workers[number].again
        if again is None:
            raise ValueError("a workload whose workers restart needs --worker")
        os.kill(self._workers[number].pid, signal.SIGKILL)
        self._workers[number] = await again()

    def _apply(self, event: Event) -> None:
        pid = self._workers[event.worker].pid
        match event.what:
            case "join":
                self._listed.add(event.worker)
                self._write()
            case "drain":
                self._listed.discard(event.worker)
                self._write()
                os.kill(pid, signal.SIGTERM)
            case "kill":
                os.kill(pid, signal.SIGKILL)
                self._listed.discard(event.worker)
                self._write()
            case "stop":
                os.kill(pid, signal.SIGSTOP)
            case "continue":
                os.kill(pid, signal.SIGCONT)

    def _write(self) -> None:
        lines = [
            f'- {{name: w{number}, address: {_HOST}, port: "{self._workers[number].port}"}}\n'
            for number in sorted(self._listed)
        ]
        written = self.file.with_suffix(".new")
        written.write_text("".join(("endpoints:\n", *lines)))
        written.rename(self.file)


class _Usage:
    """Processor time from now on, by kind of process."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = {kind: list(numbers) for kind, numbers in pids.items()}
        self._spent = dict.fromkeys(self._pids, 0.0)
        for kind, pid in self._all():
            self._spent[kind] -= processor_seconds(pid)
        self._busy = _busy_seconds()
        self._begun = time.monotonic()

    def forget(self, pid: int) -> None:
        """To be called before that process ends."""
        for kind, pids in self._pids.items():
            if pid in pids:
                self._spent[kind] += processor_seconds(pid)
                pids.remove(pid)

    def cores(self) -> dict[str, float]:
        spent = dict(self._spent)
        for kind, pid in self._all():
            spent[kind] += processor_seconds(pid)
        return {kind: seconds / self._seconds() for kind, seconds in spent.items()}

    def machine(self) -> float:
        return (_busy_seconds() - self._busy) / self._seconds()

    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _all(self) -> list[tuple[str, int]]:
        return [(kind, pid) for kind, pids in self._pids.items() for pid in pids]


def _busy_seconds() -> float:
    """What all processes of the machine used, and what its host took from it (proc_stat(5): user to steal, without idle)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _adapters(turns: Sequence[Turn]) -> list[str]:
    return sorted({one.model for turn in turns for one in session(turn)} - {BASE_MODEL})
