"""`python -m benchmarks prefill-live`: prefill and decode apart in real time, beside the same workers all doing both, and beside
virtual time.

The parts of prefill-faults: two workers that decode, each behind our sidecar, two that compute prompts, a picker without a file, a
real Envoy. The users and their prompts are those of the benchmark disaggregated, at four workers' share of its rates.
"""

import asyncio
import functools
import gc
import itertools
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.disaggregated import TRANSFERS, WORKERS, Outcome, chooser, long_prompts, mixed
from benchmarks.routing.figures import Answer
from benchmarks.routing.live_client import Asking, Users
from benchmarks.routing.machines import MACHINES, OURS, Machine
from benchmarks.routing.turns import BASE_MODEL, Turn
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import Workload
from examples.demo.cluster import MoreFlags
from examples.demo.disaggregated import PairsCluster

_SEEDS: Final = range(210, 213)
_SETTLE: Final = 1.0
_PAIRS: Final = ("prefill", "prefill", "decode", "decode")
_SHARE: Final = len(_PAIRS) / WORKERS
_LOADS: Final[Mapping[str, Callable[[int], list[Turn]]]] = {
    "mixed": functools.partial(mixed, rate=6.0 * _SHARE),
    "long prompts": functools.partial(long_prompts, rate=2.6 * _SHARE),
}
_MACHINE: Final[Machine] = replace(MACHINES[OURS], transfer=TRANSFERS["fast"])
_DECISIONS: Final = re.compile(r'disagg_decision_total\{[^}]*decision_type="([^"]+)"[^}]*\} (\S+)')


class TogetherCluster(PairsCluster):
    """As many workers, which all do both, without sidecars."""

    async def start_workers(self) -> None:
        await self.add_worker(*(f"both-{number}" for number in range(self.first_workers)))


async def main() -> None:
    """Prints a row for each load, seed, kind of cluster and kind of time."""
    print(
        "| load, seed | workers | time | requests | failed | TTFT p50 | p90 | p99 | token after token p90 | e2e mean | tokens/s | apart | left late, p99 |"
    )
    print("|---" * 13 + "|")
    for (load, turns), seed in itertools.product(_LOADS.items(), _SEEDS):
        for name, cluster, roles in (
            ("2 prefill, 2 decode", PairsCluster, _PAIRS), ("4 do both", TogetherCluster, ())
        ):  # fmt: skip
            begin = f"| {load}, {seed} | {name}"
            answers, apart, late = await _real(cluster, turns(seed))
            print(f"{begin} | real | {_cells(answers, apart)} | {late * 1e3:.0f} ms |", flush=True)
            workload = Workload(turns, workers=len(_PAIRS), roles=roles)
            answers = Run(chooser("default", _MACHINE), workload, seed, _MACHINE).run()
            apart = statistics.fmean(one.apart for one in answers)
            print(f"{begin} | virtual | {_cells(answers, apart)} | |", flush=True)


async def _real(kind: type[PairsCluster], turns: Sequence[Turn]) -> tuple[Sequence[Answer], float, float]:
    """The answers, the share whose prompt another worker computed, and how late the latest hundredth of requests left."""
    limits, (fixed, each) = _MACHINE.limits, TRANSFERS["fast"]
    given = {
        "--model": BASE_MODEL,
        "--max-num-seqs": limits.max_num_seqs,
        "--max-num-batched-tokens": limits.max_num_batched_tokens,
        "--block-size": limits.block_size,
        "--num-gpu-blocks": limits.num_blocks,
        "--step-seconds": limits.step_seconds,
        "--sequence-seconds": limits.sequence_seconds,
        "--token-seconds": limits.token_seconds,
        "--transfer-seconds": fixed,
        "--transfer-token-seconds": f"{each:f}",
    }
    flags = MoreFlags(simulator=[str(word) for pair in given.items() for word in pair])
    with tempfile.TemporaryDirectory(prefix="adsum-live-") as root:
        async with kind(Path(root), flags=flags) as cluster:
            users = Users([cluster.port], turns, 1.0, Asking(streamed=True))
            await asyncio.sleep(_SETTLE)
            gc.collect()
            gc.disable()  # a collection would make requests late
            answers = await users.send(time.monotonic())
            gc.enable()
            page = await cluster.page(cluster.metrics)
            decided = [(float(count), "prefill" in stages) for stages, count in _DECISIONS.findall(page)]
            total = sum(count for count, _ in decided)
            apart = sum(count for count, with_prefill in decided if with_prefill) / max(1.0, total)
            return answers, apart, statistics.quantiles(users.late, n=100)[98]


def _cells(every: Sequence[Answer], apart: float) -> str:
    answers = [one for one in every if not one.failed]
    found = Outcome.of(answers)
    ttft = (f"{seconds:.2f} s" for seconds in (found.ttft_p50, found.ttft_p90, found.ttft_p99))
    rest = (f"{found.pace_p90 * 1e3:.0f} ms", f"{found.e2e:.2f} s", f"{found.tokens_per_second:.0f}")
    return " | ".join([str(len(every)), str(len(every) - len(answers)), *ttft, *rest, f"{apart:.0%}"])
