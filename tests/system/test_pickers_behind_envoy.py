"""Pickers that tell each other, as processes behind real Envoys: they fill workers and find prompts as one does, and may restart."""

import asyncio
import signal
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Never

import aiohttp
import pytest
from aiohttp import web

from adsum.tasks import background
from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from tests.epp.conftest import RunningEnvoy, envoy_running
from tests.epp.envoy.picker_stage import started_worker
from tests.epp.picker_programs import PickerProgram, picker_programs
from tests.eventually import eventually

WORKERS = 3
AT_ONCE = 300
GROUPS = 24
TURNS = 10
"""Requests of each group."""
BEGINNING = 24_000
"""Bytes that the prompts of a group share."""
RESTARTS = 6
EVERY = 10.0
"""Seconds from one restart to the next."""
RATE = 20
"""Requests a second meanwhile."""
WRONG = 20.0
"""Seconds for which a count may be wrong: ten times the aim, since the machine may be busy."""


class CachingWorker:
    """`asked`: how many requests came; `found`: those that begin as an earlier one. Answers `lasts` seconds after `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.lasts = 0.0
        self._groups: set[str] = set()
        self.asked = self.found = self.running = 0

    async def answer(self, request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        self.asked += 1
        group = prompt[:4]
        self.found += group in self._groups
        self._groups.add(group)
        self.running += 1
        try:
            await self.may_answer.wait()
            await asyncio.sleep(self.lasts)
        finally:
            self.running -= 1
        return web.json_response({})


@asynccontextmanager
async def stage(
    folder: Path, envoys: int, count: int
) -> AsyncIterator[tuple[list[CachingWorker], list[PickerProgram], list[RunningEnvoy]]]:
    """So many pickers, which know each other, behind so many Envoys, each of which asks all of them."""
    async with AsyncExitStack() as stack:
        workers = [CachingWorker() for _ in range(WORKERS)]
        ports = [await started_worker(stack, "/v1/completions", one.answer) for one in workers]
        flags = [f"--peers=file://{folder}", "--peer-port=0"]
        pickers = await stack.enter_async_context(picker_programs(count, ports, flags))
        for picker in pickers:
            await eventually(lambda picker=picker: knows(picker, count - 1))
        asked = [f"--epp={one.address}" for one in pickers]
        config = render(
            envoy_flags.parse(
                ["--listen-port=0", "--admin-port=0", "--secure=false", "--outcomes=access-log", *asked]
            )
        )
        fronts = [await stack.enter_async_context(envoy_running(config)) for _ in range(envoys)]
        yield workers, pickers, fronts


async def knows(picker: PickerProgram, peers: int) -> bool:
    return len((await picker.page("status"))["peers"]["connected"]) == peers


async def ask(prompts: Sequence[str], fronts: Sequence[RunningEnvoy], apart: float) -> Counter[int]:
    """How many answers had which status; the requests come so many seconds apart."""

    async def one(at: int) -> int:
        await asyncio.sleep(at * apart)
        url = fronts[at % len(fronts)].url("/v1/completions")
        async with client.post(url, json={"model": "m", "prompt": prompts[at]}) as response:
            await response.read()
            return response.status

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        return Counter(await asyncio.gather(*map(one, range(len(prompts)))))


async def all_told(pickers: Sequence[PickerProgram], picks: int) -> bool:
    """Whether each picker made its part of the picks: a pick is told in some 60 bytes or more."""
    least = 30 * picks / len(pickers)
    statuses = [await one.page("status") for one in pickers]
    return all(peer["bytes_in"] > least for status in statuses for peer in status["peers"]["connected"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize(("envoys", "count"), [(1, 2), (1, 3), (2, 2), (2, 3)])
async def test_equal_requests_at_once_fill_the_workers_evenly(root: Path, envoys: int, count: int) -> None:
    """And none of them is in flight anywhere once all are answered."""
    spreads = []
    async with stage(root, envoys, count) as (workers, pickers, fronts):
        for turn in range(3):  # on a busy machine pickers hear late of each other now and then
            for one in workers:
                one.asked = 0
                one.may_answer.clear()
            prompts = [f"{turn}{number:03d} " + "hello " * 200 for number in range(AT_ONCE)]
            async with background(answer_together(workers)):
                assert await ask(prompts, fronts, apart=0.0) == {200: AT_ONCE}
            counts = [one.asked for one in workers]
            spreads.append(max(counts) - min(counts))
            if spreads[-1] <= 0.05 * AT_ONCE / WORKERS:
                break
        assert min(spreads) <= 0.05 * AT_ONCE / WORKERS, spreads
        await eventually(lambda: all_told(pickers, AT_ONCE))
        for picker in pickers:
            await eventually(lambda picker=picker: is_idle(picker))


async def answer_together(workers: Sequence[CachingWorker]) -> None:
    """So that all are in flight at once, however slow the machine is."""
    await eventually(lambda: sum(one.asked for one in workers) == AT_ONCE)
    for one in workers:
        one.may_answer.set()


async def is_idle(picker: PickerProgram) -> bool:
    status, own = await picker.page("status"), await picker.in_flight()
    return own == 0 and not any(peer["inflight"] for peer in status["peers"]["connected"])


async def found_of(folder: Path, envoys: int, count: int) -> float:
    """The share of prompts whose beginning their worker had computed before."""
    order = [group for _ in range(TURNS) for group in range(GROUPS)]
    prompts = [
        f"{group:04d} " + f"{group} is a group " * (BEGINNING // 13) + f"{at} of them" * 20
        for at, group in enumerate(order)
    ]
    async with stage(folder, envoys, count) as (workers, _, fronts):
        for one in workers:
            one.may_answer.set()
        assert await ask(prompts, fronts, apart=0.02) == {200: len(prompts)}
        return sum(one.found for one in workers) / len(prompts)


async def test_prompts_are_found_in_caches_as_often_as_by_one_picker(tmp_path: Path) -> None:
    found = []
    for envoys, count in ((1, 1), (1, 2), (2, 3)):
        (folder := tmp_path / f"{envoys}-{count}").mkdir(mode=0o700)
        found.append(await found_of(folder, envoys, count))
    alone, *several = found
    assert min(several) >= 0.97 * alone, found


class Witness:
    """Compares what one picker counts with what the workers have. `longest`: seconds for which that differed without a break."""

    def __init__(self, picker: PickerProgram, workers: Sequence[CachingWorker]) -> None:
        self._picker = picker
        self._workers = workers
        self.longest = 0.0

    async def watch(self) -> Never:
        recent, right_at = deque[int](maxlen=10), time.monotonic()
        while True:
            await asyncio.sleep(0.1)
            recent.append(sum(one.running for one in self._workers))
            endpoints = (await self._picker.page("debug/endpoints"))["endpoints"]
            counted = sum(one["inflight"] for one in endpoints)
            recent.append(sum(one.running for one in self._workers))
            now = time.monotonic()
            if min(recent) - 3 <= counted <= max(recent) + 3:  # some are on their way
                right_at = now
            self.longest = max(self.longest, now - right_at)

    @property
    def memory(self) -> int:
        """Bytes."""
        assert self._picker.process is not None
        pages = Path(f"/proc/{self._picker.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096


async def test_pickers_that_restart_in_turn_fail_no_request(
    root: Path, figure: Callable[[str], None]
) -> None:
    await restart_in_turn(root, RESTARTS, figure)


async def restart_in_turn(root: Path, restarts: int, figure: Callable[[str], None]) -> None:
    async with stage(root, 2, 3) as (workers, pickers, fronts):
        for one in workers:
            one.may_answer.set()
            one.lasts = 0.5
        witness, *others = pickers
        watching = Witness(witness, workers)
        prompts = [f"{at:05d} " + "hello " * 200 for at in range(int(restarts * EVERY * RATE))]
        asking = asyncio.create_task(ask(prompts, fronts, apart=1.0 / RATE))
        memory = list[int]()
        async with background(watching.watch()):
            for turn in range(restarts):
                until = time.monotonic() + EVERY
                leaving = others[turn % len(others)]
                leaving.send(signal.SIGTERM)
                await leaving.ended()
                await leaving.start()
                for picker in pickers:
                    await eventually(lambda picker=picker: knows(picker, len(others)))
                memory.append(watching.memory)
                await asyncio.sleep(max(0.0, until - time.monotonic()))
            assert await asking == {200: len(prompts)}
        figure(
            f"{restarts} restarts in turn, 2 Envoys, 3 pickers: {len(prompts)} requests, none failed; a count was wrong for at most "
            f"{watching.longest:.2f} s; memory of the third {memory[0] / 1e6:.1f} to {memory[-1] / 1e6:.1f} MB"
        )
        assert watching.longest <= WRONG
        assert memory[-1] - memory[0] < 10_000_000, memory
        for picker in pickers:
            await eventually(lambda picker=picker: is_idle(picker))
