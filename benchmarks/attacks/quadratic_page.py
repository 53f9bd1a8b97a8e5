"""A worker's metrics page holds one line of 200 KB that a regular expression may read again from each of its bytes."""

import asyncio

from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.probe import probe_for
from benchmarks.attacks.stage.victim import picker
from benchmarks.attacks.stage.worker import HONEST, answer, worker

SECONDS = 5.0
HOSTILE = HONEST + b"vllm:lora_requests_info{" + b"a" * 200_000 + b"} 1\n"


async def attack(figures: Figures) -> None:
    pages = {"/metrics": answer(HONEST)}
    async with worker(pages) as port, picker([port]) as victim:
        quiet = await probe_for(victim.url("/healthz"), SECONDS)
        spent = victim.cpu
        pages["/metrics"] = answer(HOSTILE)
        await asyncio.sleep(0)
        under = await probe_for(victim.url("/healthz"), SECONDS)
        figures.add("who asks for /healthz", quiet, under)
        figures.add("processor time in those seconds", "", f"{victim.cpu - spent:.2f} s")
