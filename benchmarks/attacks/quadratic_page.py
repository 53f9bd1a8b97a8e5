"""A worker's metrics page holds one line of 200 KB that a regular expression may read again from each of its bytes."""

import asyncio

from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.pulse import feel
from benchmarks.attacks.stage.victim import picker
from benchmarks.attacks.stage.worker import answer, worker

SECONDS = 5.0
HONEST = b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.1\n"
HOSTILE = HONEST + b"vllm:lora_requests_info{" + b"a" * 200_000 + b"} 1\n"


async def attack(figures: Figures) -> None:
    pages = {"/metrics": answer(HONEST)}
    async with worker(pages) as port, picker([port]) as victim:
        quiet = await feel(victim.url("/healthz"), SECONDS)
        spent = victim.cpu
        pages["/metrics"] = answer(HOSTILE)
        await asyncio.sleep(0)
        under = await feel(victim.url("/healthz"), SECONDS)
        figures.add("who asks for /healthz", quiet, under)
        figures.add("processor time in those seconds", "", f"{victim.cpu - spent:.2f} s")
