"""What happens to workers while they are under load."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from examples.simulator.faults import PATH as FAULT_PATH
from examples.simulator.faults import Fault

WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class FailingWorker:
    """A simulator that runs."""

    pid: int
    port: int

    async def fail(self, fault: Fault) -> None:
        url = f"http://127.0.0.1:{self.port}{FAULT_PATH}"
        async with aiohttp.ClientSession() as session, session.post(url, data=fault.value) as answer:
            answer.raise_for_status()


Scenario = Callable[[Sequence[FailingWorker]], Awaitable[None]]
"""Does it to some of the workers, and returns when it is done, or never."""


async def _nothing(workers: Sequence[FailingWorker]) -> None:
    """What a pool loses in which nothing fails, to compare with."""


async def _kill(workers: Sequence[FailingWorker]) -> None:
    os.kill(workers[0].pid, signal.SIGKILL)


async def _stop(workers: Sequence[FailingWorker]) -> None:
    os.kill(workers[0].pid, signal.SIGSTOP)


async def _stop_again_and_again(workers: Sequence[FailingWorker]) -> None:
    while True:
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(workers[0].pid, sign)
            await asyncio.sleep(1.0)


async def _half_fail(workers: Sequence[FailingWorker]) -> None:
    for worker in workers[: len(workers) // 2]:
        await worker.fail(Fault.ERROR)


async def _one_fails(workers: Sequence[FailingWorker]) -> None:
    await workers[0].fail(Fault.ERROR)


async def _one_stalls(workers: Sequence[FailingWorker]) -> None:
    await workers[0].fail(Fault.STALL)


async def _one_flaps(workers: Sequence[FailingWorker]) -> None:
    await workers[0].fail(Fault.FLAP)


async def _one_is_unavailable(workers: Sequence[FailingWorker]) -> None:
    await workers[0].fail(Fault.UNAVAILABLE)


async def _one_fails_every_other(workers: Sequence[FailingWorker]) -> None:
    await workers[0].fail(Fault.ALTERNATE)


async def _poison_fails(workers: Sequence[FailingWorker]) -> None:
    for worker in workers:
        await worker.fail(Fault.POISON)


POISONED: Final = "500 for the poison of one client"
"""The one scenario in which somebody sends poison, besides the users."""
SCENARIOS: Final[dict[str, Scenario]] = {
    "nothing happens": _nothing,
    "SIGKILL": _kill,
    "SIGSTOP": _stop,
    "stopped every other second": _stop_again_and_again,
    "500 to everything": _one_fails,
    "500 from half of the pool": _half_fail,
    "500 every other second": _one_flaps,
    "accepts, never answers": _one_stalls,
    "503 at once": _one_is_unavailable,
    "500 to every other request": _one_fails_every_other,
    POISONED: _poison_fails,
}
