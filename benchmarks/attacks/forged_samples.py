"""A client's fairness id has Unicode's ends of lines in it, and behind them samples that the dispatcher looks for."""

from benchmarks.attacks.stage.ext_proc_client import channel, send_request
from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.victim import Victim, picker
from benchmarks.attacks.stage.worker import HONEST, answer, worker
from dispatcher.gates.metering.readers import samples

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
METRIC = "llm_d_epp_ready_endpoints"
BREAKS = "\u2028", "\u2029", "\x85", "\r"


async def attack(figures: Figures) -> None:
    async with worker({"/metrics": answer(HONEST)}) as port, picker([port]) as victim:
        before = await _seen(victim)
        async with channel(victim.ports["grpc"]) as opened:
            for one in BREAKS:
                forged = f"a{one}{METRIC} 1000{one}b"
                await send_request(opened, BODY, {"x-llm-d-inference-fairness-id": forged})
        under = await _seen(victim)
    figures.add("numbers of endpoints that the dispatcher reads", before[0], under[0])
    figures.add("the same, where each of Unicode's ends of lines ends one", before[1], under[1])


async def _seen(victim: Victim) -> tuple[list[float], list[float]]:
    page = await victim.page("/metrics")
    return _ready(page), _ready("\n".join(page.splitlines()))


def _ready(page: str) -> list[float]:
    return sorted({float(value) for value, _ in samples(page.encode(), METRIC, {})})
