"""Runs simulators in real time: ours, as processes that are forked where they have been imported already, or another's program.

`python -m benchmarks.routing.live_workers` is the parent of them all. Each line on its stdin is a command line of a
simulator, as a JSON list; an empty list ends all simulators. It forks in milliseconds what takes half a second to start.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import aiohttp

from benchmarks.ports import free_ports
from benchmarks.routing.machines import MACHINES, SideBySide
from benchmarks.routing.virtual import LIMITS
from benchmarks.routing.workloads import BASE_MODEL, Workload
from examples.simulator.__main__ import main as simulator

# several processes write to one pipe, and a line and its end may come apart
_FORKED: Final = re.compile(r"forked (\d+) (w\d+)")
_READY: Final = re.compile(r"ready http=[^ ]+:(\d+) instance=(w\d+)")
_ENDED: Final = "all ended"
_DEADLINE: Final = 150.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A running simulator. `name`: "w" and its number in the workload; `port`: where it serves, on 127.0.0.1. `events`: the address
    that it publishes KV events to, the same for all; empty: it publishes none. `again`: starts it anew, once it was killed.
    """

    name: str
    pid: int
    port: int
    events: str = ""
    again: "Callable[[], Awaitable[Worker]] | None" = None


class Workers(Protocol):
    """What runs the simulators."""

    @property
    def in_words(self) -> bool:
        """Their token is a word, not four letters."""

    @property
    def rate(self) -> float:
        """Of requests, as a multiple of the workload's."""

    def workers(
        self, workload: Workload, adapters: Sequence[str], speed: float
    ) -> contextlib.AbstractAsyncContextManager[list[Worker]]:
        """All workers of a workload, also those that join later; they are killed at the end."""


class ForkServer:
    """The process that forks; at most one set of workers runs at a time."""

    in_words = False
    rate = 1.0

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @contextlib.asynccontextmanager
    async def workers(
        self, workload: Workload, adapters: Sequence[str], speed: float
    ) -> AsyncIterator[list[Worker]]:
        try:
            async with asyncio.timeout(_DEADLINE):
                started = await self._start(
                    {
                        f"w{n}": _options(f"w{n}", workload, n, adapters, speed)
                        for n in range(workload.workers)
                    }
                )
            yield started
        finally:
            async with asyncio.timeout(_DEADLINE):
                self._say([])
                while _ENDED not in await self._line():
                    pass

    async def _start(self, programs: Mapping[str, Sequence[str]]) -> list[Worker]:
        for options in programs.values():
            self._say(options)
        pids, ports = dict[str, int](), dict[str, int]()
        while len(pids) < len(programs) or len(ports) < len(programs):
            line = await self._line()
            for pattern, found in ((_FORKED, pids), (_READY, ports)):
                found |= {match[2]: int(match[1]) for match in pattern.finditer(line)}
        return [Worker(name, pids[name], ports[name]) for name in programs]

    def _say(self, options: Sequence[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(options).encode() + b"\n")

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the parent of the simulators ended"
        return line.decode().strip()


@contextlib.asynccontextmanager
async def fork_server() -> AsyncIterator[ForkServer]:
    """The parent of the workers of all runs; when it ends, they end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.routing.live_workers",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield ForkServer(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class InferenceSim:
    """llm-d-inference-sim: `binary` is built from its cmd/llm-d-inference-sim (https://github.com/llm-d/llm-d-inference-sim).

    It computes prompts side by side, as the machine of that name in virtual time does, and has that one's figures.
    """

    in_words = True
    _MACHINE: Final = MACHINES["side by side"]
    rate = _MACHINE.rate

    def __init__(self, binary: Path) -> None:
        self._binary = binary.resolve()

    @contextlib.asynccontextmanager
    async def workers(
        self, workload: Workload, adapters: Sequence[str], speed: float
    ) -> AsyncIterator[list[Worker]]:
        """As `Workers` says. Raises ValueError for a workload with adapters."""
        if adapters:
            raise ValueError("a workload with adapters runs on our simulator only")
        *ports, events = free_ports(workload.workers + 1)
        async with contextlib.AsyncExitStack() as stack:

            async def start(number: int) -> Worker:
                name, slow = f"w{number}", workload.slowness[number] if workload.slowness else 1.0
                options = self._options(slow / speed, workload.kv_blocks)
                published = f"tcp://127.0.0.1:{events}"
                process = await asyncio.create_subprocess_exec(
                    self._binary,
                    *(*options, "--port", str(ports[number]), "--zmq-endpoint", published),
                    env=os.environ | {"POD_NAME": name, "POD_IP": "127.0.0.1"},
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                stack.push_async_callback(_kill, process)
                return Worker(name, process.pid, ports[number], published, partial(start, number))

            started = [await start(number) for number in range(workload.workers)]
            async with asyncio.timeout(_DEADLINE), aiohttp.ClientSession() as client:
                for worker in started:
                    await _until_healthy(client, worker.port)
            yield started

    def _options(self, slow: float, kv_blocks: int) -> Sequence[str]:
        limits = self._MACHINE.limits
        given = {
            "--model": BASE_MODEL,
            "--mode": "random",
            "--max-num-seqs": limits.max_num_seqs,
            "--block-size": limits.block_size,
            "--kv-cache-size": kv_blocks or limits.num_blocks,
            "--event-batch-size": 1,  # as vLLM, which publishes after each step; else a second goes by
            "--max-model-len": limits.kv_tokens,
            "--max-waiting-queue-length": 10_000,
            "--max-request-body-size-mb": 64,
            "--latency-calculator": "per-token",
            "--prefill-overhead": _microseconds(limits.step_seconds * slow),
            "--prefill-time-per-token": _microseconds(limits.token_seconds * slow),
            "--inter-token-latency": _microseconds(limits.sequence_seconds * slow),
            "--time-factor-under-load": SideBySide.FACTOR,
        }
        pairs = [str(word) for pair in given.items() for word in pair]
        return [*pairs, "--enable-kvcache", "--force-dummy-tokenizer"]


def _microseconds(seconds: float) -> str:
    """As Go writes a duration."""
    return f"{round(seconds * 1e6)}us"


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _until_healthy(client: aiohttp.ClientSession, port: int) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with client.get(f"http://127.0.0.1:{port}/health") as answer:
                if answer.ok:
                    return
        await asyncio.sleep(0.05)


def _options(
    name: str, workload: Workload, number: int, adapters: Sequence[str], speed: float
) -> Sequence[str]:
    slow = workload.slowness[number] if workload.slowness else 1.0
    given = {
        "--instance-id": name,
        "--model": BASE_MODEL,
        "--max-num-seqs": LIMITS.max_num_seqs,
        "--max-num-batched-tokens": LIMITS.max_num_batched_tokens,
        "--block-size": LIMITS.block_size,
        "--num-gpu-blocks": workload.kv_blocks or LIMITS.num_blocks,
        "--max-lora": workload.max_lora,
        "--adapter-load-seconds": LIMITS.adapter_load_seconds,
        "--step-seconds": LIMITS.step_seconds * slow,
        "--sequence-seconds": LIMITS.sequence_seconds * slow,
        "--token-seconds": LIMITS.token_seconds * slow,
        "--speed": speed,
    }
    options = [str(word) for pair in given.items() for word in pair]
    return ["--no-register", *options, *(("--adapter", *adapters) if adapters else ())]


def _fork(options: Sequence[str]) -> int:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            logging.basicConfig(level=logging.WARNING)
            code = simulator(options)
        finally:
            os._exit(code)  # without the clean-up of the parent that it is a copy of
    print(f"forked {pid} {options[options.index('--instance-id') + 1]}", flush=True)
    return pid


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # nobody has waited for it, so the number is still its own
    for pid in pids:
        os.waitpid(pid, 0)


def _serve() -> None:
    gc.freeze()  # or a collection in each child would copy what they share
    pids: list[int] = []
    try:
        for line in sys.stdin:
            if options := json.loads(line):
                pids.append(_fork(options))
            else:
                _end(pids)
                pids.clear()
                print(_ENDED, flush=True)
    finally:
        _end(pids)


if __name__ == "__main__":
    _serve()
