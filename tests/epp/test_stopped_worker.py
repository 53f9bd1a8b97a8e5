"""SIGSTOP and SIGCONT of a simulated worker behind a whole picker: how soon it is avoided, and how soon it is used again."""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from benchmarks.picking.one_pick import PICKS_AT_RANDOM
from tests.epp.test_killed_worker import Picks, picking_from
from tests.examples.test_simulator_process import simulator

PICKS_AFTER = 100
CLAIMED = 0.15
"""Seconds, as benchmarks/README.md has it. Discovery's own look at a silent worker takes about 3."""
TRIES = 4
"""A busy machine makes it only slower."""


@asynccontextmanager
async def stopped(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Picking:
    """Picks one after the other."""

    def __init__(self, picks: Picks) -> None:
        self._picks = picks

    async def until_all_are_known_and_picked(self, ports: list[int]) -> None:
        """A worker whose page was never read is not late: nobody knows when to expect it."""
        seen: set[str] = set()
        while len(seen) < len(ports) or not await self._picks.pages_are_read():
            seen.add(await self._picks.one())

    async def until_unpicked(self, port: int) -> float:
        """Returns the seconds until the last pick of the worker."""
        started = last = time.monotonic()
        latest: deque[bool] = deque(maxlen=PICKS_AFTER)
        while len(latest) < PICKS_AFTER or any(latest):
            latest.append(await self._picks.one() == f"127.0.0.1:{port}")
            if latest[-1]:
                last = time.monotonic()
        return last - started

    async def until_picked(self, port: int) -> float:
        started = time.monotonic()
        while await self._picks.one() != f"127.0.0.1:{port}":
            pass
        return time.monotonic() - started


@pytest.mark.parametrize("seconds", [0.0, 3.0], ids=["for a moment", "longer than a scrape may take"])
async def test_a_stopped_worker_is_avoided_and_used_again_as_soon_as_it_continues(
    seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(simulator("--no-register", "--instance-id", f"w{n}"))
            for n in range(3)
        ]
        ports = [int(worker.url.rpartition(":")[2]) for worker in workers]
        picking = Picking(await stack.enter_async_context(picking_from(*ports, config_text=PICKS_AT_RANDOM)))
        async with asyncio.timeout(150):
            for _ in range(TRIES):
                await picking.until_all_are_known_and_picked(ports)
                async with stopped(workers[0].process.pid):
                    unpicked = await picking.until_unpicked(ports[0])
                    await asyncio.sleep(seconds)
                again = await picking.until_picked(ports[0])
                if max(unpicked, again) < 10 * CLAIMED:
                    break
    assert max(unpicked, again) < 10 * CLAIMED
    with capsys.disabled():
        print(
            f"\nlast pick {unpicked * 1000:.0f} ms after SIGSTOP, given back {again * 1000:.0f} ms after SIGCONT"
        )
