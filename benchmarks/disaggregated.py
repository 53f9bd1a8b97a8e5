"""`python -m benchmarks disaggregated`: prefill and decode apart, in virtual time: the default where workers have roles beside
workers that do both, beside a file that always takes them apart, and beside an oracle, for each split of the workers.
"""

import argparse
import functools
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final

from benchmarks.routing.arms import ALWAYS_APART, LEAST_COST, Arm, MakeChooser, PickerChooser
from benchmarks.routing.figures import Answer
from benchmarks.routing.machines import MACHINES, OURS, Machine
from benchmarks.routing.oracle import PairOracle
from benchmarks.routing.turns import Turn, arrivals, text
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import Workload

WORKERS: Final = 6
SECONDS: Final = 60.0


def long_prompts(seed: int, *, rate: float = 2.6, seconds: float = SECONDS) -> list[Turn]:
    """Prompts of some 8,000 tokens, answers of 100: documents. Six workers compute about 3.4 of these a second."""
    return _drawn("long", seed, seconds, lambda at: (rate, 8000, 100))


def mixed(seed: int, *, rate: float = 6.0, seconds: float = SECONDS) -> list[Turn]:
    """Short chats with long answers, and one prompt in six that is long."""
    return _drawn("mixed", seed, seconds, lambda at: (rate, 500, 200), long_share=1 / 6)


def shifting(seed: int, *, seconds: float = SECONDS) -> list[Turn]:
    """First long prompts with short answers, then more and more short prompts with long answers."""

    def at_time(at: float) -> tuple[float, int, int]:
        part = min(max((at / seconds - 0.3) / 0.4, 0.0), 1.0)
        return 3.4 + 1.6 * part, int(6000 - 5600 * part), int(60 + 340 * part)

    return _drawn("shifting", seed, seconds, at_time)


def _drawn(
    name: str,
    seed: int,
    seconds: float,
    of_time: Callable[[float], tuple[float, int, int]],
    long_share: float = 0.0,
) -> list[Turn]:
    """`of_time`: the rate, and the means of the tokens of prompts and of answers, at a time."""
    rng = random.Random(f"{name} {seed}")
    turns = list[Turn]()
    fastest = max(of_time(seconds * part / 10)[0] for part in range(11))
    for at in arrivals(rng, fastest, seconds):
        rate, prompt, output = of_time(at)
        if rng.random() > rate / fastest:
            continue
        if rng.random() < long_share:
            prompt *= 12
        tokens = min(30_000, max(32, int(prompt * rng.lognormvariate(-0.1, 0.45))))
        words = text(f"{name}/{seed}", 100) + text(f"{name}{len(turns)}/{seed}", tokens)
        turns.append(Turn(at, words, max(8, int(output * rng.lognormvariate(-0.1, 0.45)))))
    return turns


WORKLOADS: Final[Mapping[str, Callable[[int], list[Turn]]]] = {
    "long prompts": long_prompts, "mixed": mixed, "shifting": shifting
}  # fmt: skip
TRANSFERS: Final[Mapping[str, tuple[float, float]]] = {
    "fast": (0.02, 0.00001),
    "slow": (0.1, 0.0001),
    "very slow": (0.3, 0.0004),
}
"""Seconds of a transfer, and for each token: of a fabric, of one link that is shared, and of a network of 1 Gbit/s."""


@dataclass(frozen=True, slots=True)
class Case:
    """`prefill`: of WORKERS, those that only compute prompts; 0: all do both."""

    workload: str
    transfer: str
    way: str
    prefill: int
    seed: int

    @property
    def name(self) -> str:
        split = f"{self.prefill} prefill, {WORKERS - self.prefill} decode" if self.prefill else "all do both"
        return f"{self.way}, {split}"

    def run(self) -> "Outcome":
        machine = replace(MACHINES[OURS], transfer=TRANSFERS[self.transfer])
        roles = ("prefill",) * self.prefill + ("decode",) * (WORKERS - self.prefill) if self.prefill else ()
        workload = Workload(WORKLOADS[self.workload], workers=WORKERS, roles=roles)
        return Outcome.of(Run(chooser(self.way, machine), workload, self.seed, machine).run())


def chooser(way: str, machine: Machine) -> MakeChooser:
    if way == "oracle":
        return functools.partial(PairOracle, transfer=machine.transfer_seconds, there=machine.there)
    config = ALWAYS_APART if way == "always apart" else LEAST_COST
    return functools.partial(PickerChooser, Arm(config))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds; `pace`: between two tokens of an answer. `apart`: the share of requests whose prompt another worker computed."""

    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    pace_p90: float
    e2e: float
    tokens_per_second: float
    apart: float

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Outcome":
        ttft = statistics.quantiles([one.first - one.at for one in answers], n=100, method="inclusive")
        paces = [(one.ended - one.first) / (one.output - 1) for one in answers]
        pace = statistics.quantiles(paces, n=10, method="inclusive")
        duration = max(one.ended for one in answers) - min(one.at for one in answers)
        return cls(
            *(ttft[49], ttft[89], ttft[98], pace[8]),
            statistics.fmean(one.ended - one.at for one in answers),
            sum(one.output for one in answers) / duration,
            sum(one.apart for one in answers) / len(answers),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    workloads: Sequence[str] = tuple(WORKLOADS)
    transfers: Sequence[str] = ("fast",)
    seeds: range = range(5)
    splits: Sequence[int] = tuple(range(WORKERS))
    oracle: bool = False
    jobs: int | None = None

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> "Plan":
        seeds = range(flags.first_split_seed, flags.first_split_seed + flags.split_seeds)
        return cls(
            flags.split_workload or tuple(WORKLOADS),
            flags.transfer or ("fast",),
            seeds,
            flags.split or tuple(range(WORKERS)),
            flags.split_oracle,
        )

    def cases(self) -> Iterator[Case]:
        ways = ("default", "always apart", *(["oracle"] if self.oracle else []))
        for workload in self.workloads:
            for transfer in self.transfers:
                for prefill in self.splits:
                    for way in ways:
                        if prefill or way != "always apart":
                            yield from (Case(workload, transfer, way, prefill, seed) for seed in self.seeds)


def add_flags(group: argparse._ArgumentGroup) -> None:
    """The flags of this benchmark."""
    group.add_argument("--split-workload", action="append", choices=tuple(WORKLOADS), help="default: all")
    group.add_argument("--transfer", action="append", choices=tuple(TRANSFERS), help="default: fast")
    group.add_argument("--split-seeds", type=int, default=5, metavar="N", help="(%(default)s)")
    group.add_argument("--first-split-seed", type=int, default=0, metavar="N", help="(%(default)s)")
    group.add_argument(
        "--split", action="append", type=int, choices=range(WORKERS), metavar="N",
        help=f"of {WORKERS} workers so many compute prompts, 0: all do both; may be repeated; default: all",
    )  # fmt: skip
    group.add_argument(
        "--split-oracle", action="store_true", help="an oracle too: a minute or two for each run"
    )


async def main(plan: Plan | None = None) -> None:
    """Prints a table for each workload and transfer, and on stderr what is done."""
    plan = plan or Plan()
    cases, outcomes = list(plan.cases()), list[Outcome]()
    with ProcessPoolExecutor(plan.jobs or os.cpu_count() or 1, get_context("spawn")) as pool:
        for case, outcome in zip(cases, pool.map(Case.run, cases), strict=True):
            outcomes.append(outcome)
            print(
                f"{len(outcomes)} of {len(cases)}: {case.workload}, {case.name}", file=sys.stderr, flush=True
            )
    for line in tables(cases, outcomes):
        print(line)


def tables(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Lines of Markdown: medians over the seeds with their ranges, the lowest mean time to the end first."""
    found: dict[tuple[str, str], dict[str, list[Outcome]]] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        found.setdefault((case.workload, case.transfer), {}).setdefault(case.name, []).append(outcome)
    for (workload, transfer), rows in found.items():
        fixed, each = TRANSFERS[transfer]
        yield from ("", f"{workload}; a transfer takes {fixed:g} s, and {each * 1e3:g} ms for each token", "")
        yield "| picked by | TTFT p50, s | p90, s | p99, s | token after token p90, ms | e2e mean, s | tokens/s | apart |"
        yield "|---" * 8 + "|"
        for name, some in sorted(rows.items(), key=lambda row: statistics.median(one.e2e for one in row[1])):
            ttft = [[getattr(one, f"ttft_{part}") for one in some] for part in ("p50", "p90", "p99")]
            cells = [_range(seconds, 2) for seconds in (*ttft, [one.e2e for one in some])]
            cells.insert(3, _range([one.pace_p90 * 1e3 for one in some], 0))
            cells.append(_range([one.tokens_per_second for one in some], 0))
            yield f"| {' | '.join([name, *cells])} | {statistics.median(one.apart for one in some):.0%} |"


def _range(values: Sequence[float], digits: int) -> str:
    """The median, then the least and the most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"
