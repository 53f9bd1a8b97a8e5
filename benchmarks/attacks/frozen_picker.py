"""A picker is stopped, as by a debugger or a machine that swaps: the only one, then one of two."""

import asyncio
import signal

from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.mesh import ClientAnswers, Mesh, mesh

TOGETHER = 20


async def attack(figures: Figures) -> None:
    for pickers in (1, 2):
        async with mesh(pickers) as stage:
            before = await _burst(stage)
            stage.pickers[0].process.send_signal(signal.SIGSTOP)
            under = await _burst(stage)
            figures.add(f"{TOGETHER} requests at once, {pickers} pickers, one is frozen", before, under)


async def _burst(stage: Mesh) -> ClientAnswers:
    answers = ClientAnswers()
    try:
        async with asyncio.timeout(12):
            await asyncio.gather(*(stage.send(answers) for _ in range(TOGETHER)))
    except TimeoutError:
        answers.statuses[0] += TOGETHER - sum(answers.statuses.values())
        answers.longest = 12
    return answers
