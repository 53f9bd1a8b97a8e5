"""A client sends 60 MiB of chat messages of eleven bytes each: five million of them."""

from benchmarks.attacks.stage.ext_proc_client import channel, send_request
from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.probe import probe_for, probing
from benchmarks.attacks.stage.victim import picker
from benchmarks.attacks.stage.worker import HONEST, answer, worker

MESSAGE = b'{"role":""},'
BODY = b'{"model":"m","messages":[' + MESSAGE * (60 * 1024 * 1024 // len(MESSAGE)) + b'{"role":"user"}]}'
TEXT = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * len(BODY) + b'"}]}'


async def attack(figures: Figures) -> None:
    async with worker({"/metrics": answer(HONEST)}) as port, picker([port]) as victim:
        page = victim.url("/healthz")
        quiet = await probe_for(page, 2.0)
        async with channel(victim.ports["grpc"]) as opened:
            for body, what in ((TEXT, "one message"), (BODY, "five million")):
                spent, held = victim.cpu, victim.megabytes
                async with probing(page) as under:
                    answered = await send_request(opened, body)
                figures.add(f"who asks for /healthz, while a body of {what} comes", quiet, under)
                figures.add(
                    "processor time of that, and its answer", "", f"{victim.cpu - spent:.2f} s, {answered}"
                )
                figures.add("memory", f"{held:.0f} MB", f"{victim.megabytes:.0f} MB")
