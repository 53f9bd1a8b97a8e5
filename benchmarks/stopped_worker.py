"""Measures how soon a stopped worker (SIGSTOP) is picked no more, and how soon it is picked again once it continues.

Simulated workers and a real picker process, which is asked for one pick after the other. It picks at random, so that only
what it knows of a worker's life keeps requests away.
"""

import asyncio
import contextlib
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from grpc import aio

from benchmarks.picking.one_pick import PICKS_AT_RANDOM, picks_over
from benchmarks.picking.pickers import cores, started

_WORKERS: Final = 4
_ROUNDS: Final = 5
_STOPS: Final = (0.5, 2.5, 8.0)
"""Seconds for which a worker is stopped."""
_BETWEEN: Final = 1.0
"""Seconds of picks before a worker is stopped."""
_IDLE: Final = 3.0
"""Seconds after which a worker without requests is scraped seldom."""


async def main() -> None:
    for registered in (False, True):
        print("workers that register:" if registered else "workers at fixed addresses:")
        async with _picking(registered=registered) as (pick, workers):
            for seconds in _STOPS:
                print(_line(f"{seconds:g} s", [await _stop(pick, workers, seconds) for _ in range(_ROUNDS)]))
            idle = [await _stop(pick, workers, 2.5, idle=True) for _ in range(_ROUNDS)]
            print(_line("2.5 s, idle before", idle))


def _line(name: str, measured: list[tuple[float, float]]) -> str:
    said = []
    for what, values in zip(
        ("last pick after SIGSTOP", "first after SIGCONT"), zip(*measured, strict=True), strict=True
    ):
        said.append(
            f"{what}: median {statistics.median(values) * 1e3:.0f} ms, most {max(values) * 1e3:.0f} ms"
        )
    return f"  stopped for {name}: " + "; ".join(said)


async def _stop(
    pick: Any, workers: dict[str, int], seconds: float, *, idle: bool = False
) -> tuple[float, float]:
    """Seconds from SIGSTOP, or the first request after it, to the last pick; from SIGCONT to the first."""
    seen: set[str] = set()
    until = time.monotonic() + _BETWEEN
    while len(seen) < len(workers) or time.monotonic() < until:
        seen.add(await pick())
    if idle:
        await asyncio.sleep(_IDLE)
    destination, pid = next(iter(workers.items()))
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = last = time.monotonic()
        while time.monotonic() - begun < seconds:
            if await pick() == destination:
                last = time.monotonic()
    finally:
        os.kill(pid, signal.SIGCONT)
    continued = time.monotonic()
    while await pick() != destination:
        pass
    return last - begun, time.monotonic() - continued


@contextlib.asynccontextmanager
async def _picking(*, registered: bool) -> AsyncIterator[tuple[Any, dict[str, int]]]:
    """A function that asks for one pick, and the process of each worker by its destination."""
    load_core, picker_core = cores()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "registry").mkdir(mode=0o700)
        options = ["--discovery", f"file://{folder}/registry"] if registered else ["--no-register"]
        workers: dict[str, int] = {}
        for number in range(_WORKERS):
            program = [sys.executable, "-m", "examples.simulator", "--instance-id", f"w{number}", *options]
            process = await stack.enter_async_context(started(program, load_core))
            workers[await _address(process, rb"http=([^ ]+:\d+)")] = process.pid
        where = options[1] if registered else "static://" + ",".join(workers)
        (folder / "picker.yaml").write_text(PICKS_AT_RANDOM)
        program = [sys.executable, "-m", "epp", "--discovery", where, "--host=127.0.0.1", "-v=0"]
        program += ["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false"]
        program += [f"--config-file={folder}/picker.yaml"]
        process = await stack.enter_async_context(started(program, picker_core))
        channel = aio.insecure_channel(await _address(process, rb"grpc=([^ ]+:\d+)"))
        yield picks_over(await stack.enter_async_context(channel)), workers


async def _address(process: asyncio.subprocess.Process, pattern: bytes) -> str:
    assert process.stdout is not None
    found = re.search(pattern, await process.stdout.readline())
    assert found is not None
    return found[1].decode()
