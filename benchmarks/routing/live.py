"""`python -m benchmarks.routing.live --go-picker FILE`: shared prefixes, responses not streamed, in real time behind Envoy.

Five simulated workers, an Envoy and one picker are started for each turn, so that all caches are cold; the pickers take turns
on the same prompts. `--speed`: simulated seconds in one real one; the slower, the less it matters what else the machine does.
"""

import argparse
import asyncio
import contextlib
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.picking.envoys import behind_envoy
from benchmarks.picking.pickers import OURS, Kind, cores, go_picker, picker, started
from benchmarks.profiles import over_endpoints_file
from benchmarks.routing.figures import Answer, Figures, median
from benchmarks.routing.virtual import LIMITS
from benchmarks.routing.workloads import Turn, shared
from epp.config.picker_config import DEFAULT_CONFIG

_MODEL: Final = "tiny"
_TIMEOUT: Final = 300.0
_WORKERS: Final = 5


@contextlib.asynccontextmanager
async def _workers(speed: float) -> AsyncIterator[list[int]]:
    machine = {
        "--max-num-seqs": LIMITS.max_num_seqs,
        "--max-num-batched-tokens": LIMITS.max_num_batched_tokens,
        "--num-gpu-blocks": LIMITS.num_blocks,
        "--step-seconds": LIMITS.step_seconds,
        "--sequence-seconds": LIMITS.sequence_seconds,
        "--token-seconds": LIMITS.token_seconds,
        "--speed": speed,
    }
    options = [str(word) for pair in machine.items() for word in pair]
    program = (sys.executable, "-m", "examples.simulator", "--no-register", "--model", _MODEL, *options)
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for number in range(_WORKERS):
            name = ("--instance-id", f"w{number}")
            process = await stack.enter_async_context(started((*program, *name), cores()[0]))
            assert process.stdout is not None
            found = re.search(rb"http=[^ ]+:(\d+) ", await process.stdout.readline())
            assert found is not None
            ports.append(int(found[1]))
        yield ports


class _Users:
    """Sends all requests of one turn; the times in its results are simulated seconds."""

    def __init__(self, session: aiohttp.ClientSession, speed: float) -> None:
        self._session = session
        self._speed = speed
        self._start = time.monotonic()

    async def send(self, turns: Sequence[Turn]) -> list[Answer]:
        return await asyncio.gather(*(self._ask(turn) for turn in turns))

    async def _ask(self, turn: Turn) -> Answer:
        await asyncio.sleep(self._start + turn.at / self._speed - time.monotonic())
        asked = self._now()
        body = {"model": _MODEL, "prompt": turn.prompt, "max_tokens": turn.output_tokens}
        async with self._session.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            usage = (await answer.json())["usage"]
            worker = answer.headers["x-served-by"]
        ended = self._now()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(asked, ended, ended, worker, usage["prompt_tokens"], cached)

    def _now(self) -> float:
        return (time.monotonic() - self._start) * self._speed


async def _turn(kind: Kind, turns: Sequence[Turn], speed: float) -> Figures:
    core = cores()[1]
    config = None if kind.binary else over_endpoints_file(DEFAULT_CONFIG)
    async with (
        _workers(speed) as ports,
        picker(kind, ports, core, options=(), config=config) as direct,
        behind_envoy(direct, ports, core) as envoy,
        aiohttp.ClientSession(
            f"http://127.0.0.1:{envoy.port}",
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
        ) as session,
    ):
        return Figures.of(await _Users(session, speed).send(turns))


async def main(given: argparse.Namespace) -> None:
    """Prints each turn, then the medians."""
    kinds = [OURS, *([go_picker(given.go_picker)] if given.go_picker else [])]
    found: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
    print("| picker | seed | e2e mean | e2e p50 | e2e p90 | cached | largest share | failed |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in range(given.seeds):
        turns = shared(seed, rate=given.rate, seconds=given.seconds)
        order = itertools.islice(itertools.cycle(kinds), seed, seed + len(kinds))
        for kind in order:
            figures = await _turn(kind, turns, given.speed)
            found[kind.name].append(figures)
            print(f"| {kind.name} | {seed} | {figures.row()} |", flush=True)
    for name, runs in found.items():
        print(f"| {name} | median | {median(runs).row()} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.live", description=__doc__)
    parser.add_argument("--go-picker", type=Path, metavar="FILE", help="the Go picker's binary")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10.0, help="requests a simulated second")
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated ones")
    parser.add_argument("--speed", type=float, default=0.5)
    asyncio.run(main(parser.parse_args()))
