"""A client makes a thousand fairness ids, then somebody asks for the metrics page twenty times at once."""

import asyncio

from benchmarks.attacks.stage.ext_proc_client import channel, send_request
from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.probe import probe_for, probing
from benchmarks.attacks.stage.victim import picker
from benchmarks.attacks.stage.worker import HONEST, answer, worker

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
IDS = 1000
AT_ONCE = 20


async def attack(figures: Figures) -> None:
    async with worker({"/metrics": answer(HONEST)}) as port, picker([port]) as victim:
        async with channel(victim.ports["grpc"]) as opened:
            for number in range(IDS):
                await send_request(opened, BODY, {"x-llm-d-inference-fairness-id": f"{number:0200}"})
        quiet, held = await probe_for(victim.url("/healthz"), 2.0), victim.megabytes
        spent, most = victim.cpu, held
        async with probing(victim.url("/healthz")) as under:
            asked = [asyncio.create_task(victim.page("/metrics", timeout=40)) for _ in range(AT_ONCE)]
            while not all(task.done() for task in asked):
                await asyncio.sleep(0.05)
                most = max(most, victim.megabytes)
        figures.add("who asks for /healthz", quiet, under)
        figures.add("memory, at most", f"{held:.0f} MB", f"{most:.0f} MB")
        figures.add(f"processor time of {AT_ONCE} pages", "", f"{victim.cpu - spent:.2f} s")
        figures.add("bytes of one", "", f"{len(await asked[0]) / 1e6:.1f} MB")
