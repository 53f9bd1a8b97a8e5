"""One of three workers says that NaN, more than all or less than nothing of its cache is used, and has an empty queue."""

import asyncio

from benchmarks.attacks.stage.ext_proc_client import channel, send_request
from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.victim import Victim, picker
from benchmarks.attacks.stage.worker import answer, worker

BODY = b'{"model":"m","messages":[{"role":"user","content":"%d"}]}'
PAGE = "vllm:num_requests_waiting {}\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc {}\n"
PICKS = 60
SETTLED = 2.0
"""Seconds after which every page was read again."""


async def attack(figures: Figures) -> None:
    honest = {"/metrics": answer(PAGE.format(3, 0.5).encode())}
    pages = dict(honest)
    async with (
        worker(pages) as liar,
        worker(honest) as one,
        worker(honest) as other,
        picker([liar, one, other]) as victim,
    ):
        before = await _share(victim, liar)
        for number in ("NaN", "+Inf", "-1", "1e308"):
            pages["/metrics"] = answer(PAGE.format(0, number).encode())
            figures.add(
                f"picks of {PICKS} that go to it, saying {number}", before, await _share(victim, liar)
            )
        pages["/metrics"] = answer(PAGE.format("1e308", 0.5).encode())
        figures.add("the same, saying a queue of 1e308", before, await _share(victim, liar))


async def _share(victim: Victim, port: int) -> int:
    await asyncio.sleep(SETTLED)
    async with channel(victim.ports["grpc"]) as opened:
        picks = [await send_request(opened, BODY % number) for number in range(PICKS)]
    return sum(pick.startswith(f"127.0.0.1:{port}") for pick in picks)
