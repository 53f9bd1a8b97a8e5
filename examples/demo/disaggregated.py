"""`make demo ARGS=--disaggregated`: prompts are computed on workers of their own, of which one joins, one is killed and one drains.

Nothing stands between the picker and the workers but a sidecar in front of each decode worker; the picker has no file.
"""

import asyncio
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.demo.cluster import COMPONENT, NAMESPACE, DemoCluster, MoreFlags
from examples.demo.processes import DemoProcess, python
from examples.demo.scenario import Scenario, is_avoided
from examples.demo.summary import Claim, Summary, noticed
from examples.ports import free_port

NEW_WORDS: Final = (500, 3000)
"""Of each prompt, in the load."""
_FLAGS: Final = MoreFlags(simulator=("--kv-load-failure-policy", "recompute", "--transfer-seconds", "0.01"))
_APART: Final = re.compile(r'disagg_decision_total\{[^}]*decision_type="prefill-decode"[^}]*\} (\S+)')
_ALL: Final = re.compile(r"disagg_decision_total\{[^}]*\} (\S+)")
_HELD: Final = re.compile(r"simulator:held_kv_blocks\{[^}]*\} (\S+)")
_FEWEST_APART: Final = 0.2


class PairsCluster(DemoCluster):
    """Two workers for decode, each behind a sidecar, and two for prefill. The name of a worker begins with its role."""

    first_workers = 4

    def __init__(
        self, root: Path, port: int = 0, *, make_target: str = "demo", flags: MoreFlags = _FLAGS
    ) -> None:
        super().__init__(root, port, flags=flags, make_target=make_target, config=None)

    async def start_workers(self) -> None:
        await asyncio.gather(
            *(self.add_worker(name) for name in ("decode-1", "decode-2", "prefill-1", "prefill-2"))
        )

    async def start_worker(self, name: str, *flags: str) -> None:
        role = name.partition("-")[0]
        if role != "decode":
            await super().start_worker(name, "--role", role, *flags)
            return
        port, behind = free_port(), free_port()
        await super().start_worker(
            name, "--role", role, "--port", str(behind), "--advertised-port", str(port), *flags
        )
        sidecar = await DemoProcess.start(
            f"sidecar-of-{name}",
            python(
                "registry",
                "pd-sidecar",
                *("--address", "127.0.0.1", "--port", str(port)),
                *("--model-server-host", "127.0.0.1", "--model-server-port", str(behind)),
                *("--discovery", self.discovery, "--prefill-component", f"{NAMESPACE}/{COMPONENT}"),
            ),
            self.root,
        )
        self.beside.append(sidecar)
        await sidecar.wait_ready()


@dataclass(slots=True)
class PairsScenario(Scenario):
    """`apart`: the share of requests whose prompt another worker computed; `held`: blocks that nobody fetched, at the end."""

    line: str = "two workers decode, two compute prompts for them"
    apart: float = 0.0
    held: float = 0.0

    async def run(self) -> None:
        """A prefill worker joins, one is killed, one drains."""
        await asyncio.sleep(4)
        await self._join("prefill-3")
        await asyncio.sleep(4)
        await self._signal("is killed (SIGKILL)", "prefill-1", signal.SIGKILL, is_avoided)
        await asyncio.sleep(4)
        await self._signal("drains (SIGTERM)", "prefill-2", signal.SIGTERM, is_avoided)
        await self.cluster.workers["prefill-2"].wait()
        self.line = "prefill-2 handed over what it had computed, and left"
        await asyncio.sleep(3)
        page = await self.cluster.page(self.cluster.metrics)
        self.apart = _sum(_APART, page) / max(1.0, _sum(_ALL, page))

    async def look_at_blocks(self) -> None:
        """Once all requests have ended."""
        url = f"http://{self.cluster.workers['prefill-3'].ready['http']}"
        for _ in range(100):  # a transfer may be under way
            self.held = _sum(_HELD, await self.cluster.page(url))
            if not self.held:
                return
            await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class PairsSummary(Summary):
    apart: float
    held: float

    def claims(self) -> Iterator[Claim]:
        """All of them must hold for exit code 0."""
        for event in self.events:
            yield noticed(event)
        yield Claim(f"all three things happened: {len(self.events)}", len(self.events) == 3)
        answers = self.shares()
        yield Claim(
            f"workers that decode answered, and no other: {', '.join(answers)}",
            answers.keys() == {"decode-1", "decode-2"},
        )
        yield Claim(
            f"of {len(self.exchanges)} prompts other workers computed a share that was worth it: {self.apart:.0%}",
            self.apart > _FEWEST_APART,
        )
        failed = self.failures().total()
        yield Claim(f"no request failed, whatever became of a prefill worker: {failed}", not failed)
        yield Claim(f"no KV cache is kept for somebody who went away: {self.held:.0f} blocks", not self.held)


def _sum(series: re.Pattern[str], page: str) -> float:
    return sum(float(value) for value in series.findall(page))
