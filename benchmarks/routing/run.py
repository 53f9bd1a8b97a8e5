"""`python -m benchmarks routing`: each way to choose on each workload, in virtual time; prints tables of medians over seeds.

The same seed always gives the same figures, whatever else the machine does. Runs are spread over processes.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.routing import results
from benchmarks.routing.arms import ARMS, CONSTANTS, chooser
from benchmarks.routing.baselines import BASELINES
from benchmarks.routing.figures import Figures
from benchmarks.routing.machines import MACHINES, OURS
from benchmarks.routing.results import RunKey, VirtualResult
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import WORKLOADS

QUICK_WORKLOADS: Final = ("shared, streamed", "growing sessions", "long tail", "60 at once, same", "fan-out")
QUICK_ARMS: Final = (
    "least cost", "the Go picker's weights", "the Go picker, sticky", "round robin", "oracle"
)  # fmt: skip
QUICK_SECONDS: Final = 20.0
ALL: Final = "all"
MACHINE_WORKLOADS: Final = ("shared, streamed", "shared, Zipf", "growing sessions", "long tail")
MACHINE_ARMS: Final = (
    "least cost",
    "the Go picker's weights",
    "the Go picker's sticky configuration",
    "oracle",
)
KNEE: Final = "shared, streamed"
KNEE_TTFT: Final = 1.0
_KNEE_RATES: Final = (2.0, 34.0)
_KNEE_STEP: Final = 0.25
_KNEE_SECONDS: Final = 60.0
_KNEE_SINCE: Final = 20.0
"""Seconds that do not count: until then all caches are cold."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`rates` and `seconds` None: each workload's own. `knee`: look for the knee of each arm instead."""

    workloads: Sequence[str] = tuple(WORKLOADS)
    arms: Sequence[str] = (*ARMS, *BASELINES)
    seeds: int = 5
    rates: Sequence[float | None] = (None,)
    seconds: float | None = None
    jobs: int | None = None
    out: Path | None = None
    knee: bool = False
    machines: Sequence[str] = (OURS,)
    first_seed: int = 0

    @property
    def every_seed(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @classmethod
    def quick(cls) -> "Plan":
        """About a minute on two idle cores."""
        return cls(QUICK_WORKLOADS, QUICK_ARMS, seeds=3, seconds=QUICK_SECONDS)

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> "Plan":
        """Of the flags of `add_flags`. SystemExit where two do not fit."""
        plan = cls.quick() if flags.quick else cls()
        rates = flags.rate or plan.rates
        workloads = flags.workload or plan.workloads
        if flags.rate:
            for name in flags.workload or ():
                _rated(name)
            workloads = flags.workload or [KNEE]
        machines = plan.machines
        if flags.machine:
            machines = tuple(MACHINES) if ALL in flags.machine else flags.machine
            workloads = flags.workload or MACHINE_WORKLOADS
            plan = replace(plan, arms=MACHINE_ARMS, seconds=QUICK_SECONDS)
        return replace(
            plan,
            machines=machines,
            first_seed=flags.first_seed,
            workloads=workloads,
            arms=flags.arm or plan.arms,
            seeds=flags.seeds or plan.seeds,
            rates=rates,
            jobs=flags.jobs,
            out=flags.out,
            knee=flags.knee,
        )

    def todo(self, done: Sequence[VirtualResult]) -> Iterator["_Task"]:
        """What is to be run, in the plan's order; arms of one workload and seed share their prompts."""
        there = {one.key for one in done}
        for machine, name, rate, seed in self._runs():
            keys = {arm: (name, arm, seed, rate, self.seconds, machine) for arm in self.arms}
            arms = tuple(arm for arm, key in keys.items() if key not in there)
            if arms:
                yield _Task(name, arms, seed, rate, self.seconds, machine)

    def run_keys(self) -> Iterator[RunKey]:
        """Of all results, in the plan's order."""
        for machine, name, rate, seed in self._runs():
            for arm in self.arms:
                yield name, arm, seed, rate, self.seconds, machine

    def _runs(self) -> Iterator[tuple[str, str, float | None, int]]:
        return itertools.product(self.machines, self.workloads, self.rates, self.every_seed)


@dataclass(frozen=True, slots=True)
class _Task:
    workload: str
    arms: tuple[str, ...]
    seed: int
    rate: float | None
    seconds: float | None
    machine: str = OURS

    def run(self) -> list[VirtualResult]:
        machine = MACHINES[self.machine]
        workload = WORKLOADS[self.workload].times(machine.rate)
        if self.rate is not None:
            workload = workload.at_rate(self.rate)
        if self.seconds is not None:
            workload = workload.lasting(self.seconds)
        turns = workload.turns(self.seed)
        workload = replace(workload, turns=lambda seed: turns)
        return [
            VirtualResult(
                self.workload, arm, self.seed, self.rate, self.seconds,
                Run(chooser(arm), workload, self.seed, machine).figures(), self.machine,
            )
            for arm in self.arms
        ]  # fmt: skip


def add_flags(group: argparse._ArgumentGroup) -> None:
    """The flags of this benchmark."""
    arms = (*ARMS, *BASELINES)
    group.add_argument(
        "--workload", action="append", choices=tuple(WORKLOADS), metavar="NAME",
        help=f"of {', '.join(WORKLOADS)}; may be repeated; default: all",
    )  # fmt: skip
    group.add_argument(
        "--arm", action="append", choices=(*arms, *CONSTANTS), metavar="NAME",
        help=f"of {', '.join(arms)}, or {', '.join(CONSTANTS)} (requestTokens, interference); may be repeated; default: all",
    )  # fmt: skip
    group.add_argument("--seeds", type=_positive, metavar="N", help="default: 5")
    group.add_argument(
        "--rate", type=_rate, action="append", metavar="N",
        help=f"requests a second instead of the workload's own, for TTFT over rate; may be repeated; without --workload: {KNEE}",
    )  # fmt: skip
    group.add_argument(
        "--quick", action="store_true", help="few workloads and arms, 20 s each: a minute on two idle cores"
    )
    group.add_argument(
        "--machine", action="append", choices=(ALL, *MACHINES), metavar="NAME",
        help=f"kind of workers, of {', '.join(MACHINES)}, or {ALL}; may be repeated; 20 s of arrivals, one table of all",
    )  # fmt: skip
    group.add_argument("--first-seed", type=int, default=0, metavar="N", help="the lowest seed (%(default)s)")
    group.add_argument("--jobs", type=_positive, metavar="N", help="processes; default: one for each core")
    group.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON lines, one a run; runs that it has are not repeated"
    )
    group.add_argument(
        "--knee",
        action="store_true",
        help=f"for each arm the highest rate of {KNEE!r} at which TTFT p90 stays under 1 s",
    )


async def main(plan: Plan | None = None) -> None:
    """Prints the tables, and on stderr what is done."""
    plan = plan or Plan()
    if plan.knee:
        for line in results.knees(find_knees(plan)):
            print(line)
        return
    print_table = results.tables if tuple(plan.machines) == (OURS,) else results.machines_table
    for line in print_table(run(plan)):
        print(line)


def run(plan: Plan) -> list[VirtualResult]:
    """All results of the plan, those that its file has among them, in the plan's order."""
    try:
        found = results.read(plan.out) if plan.out is not None else []
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    todo = list(plan.todo(found))
    with _processes(plan) as pool:
        running = [pool.submit(_Task.run, task) for task in todo]
        for count, future in enumerate(as_completed(running), 1):
            new = future.result()
            found += new
            if plan.out is not None:
                with plan.out.open("a") as file:
                    file.writelines(one.line() + "\n" for one in new)
            print(
                f"{count} of {len(todo)}: {new[0].workload}, seed {new[0].seed}", file=sys.stderr, flush=True
            )
    by_key = {one.key: one for one in found}
    return [by_key[key] for key in plan.run_keys()]


def find_knees(plan: Plan) -> Mapping[str, list[float]]:
    """By arm, for each seed the highest rate at which TTFT p90 stays under a second, by bisection."""
    arms = [arm for arm in plan.arms for _ in plan.every_seed]
    seeds = [seed for _ in plan.arms for seed in plan.every_seed]
    found: dict[str, list[float]] = {}
    with _processes(plan) as pool:
        for arm, rate in zip(arms, pool.map(_knee, arms, seeds), strict=True):
            found.setdefault(arm, []).append(rate)
            print(f"{arm}: {rate:g} a second", file=sys.stderr, flush=True)
    return found


def _knee(arm: str, seed: int) -> float:
    low, high = _KNEE_RATES
    while high - low > _KNEE_STEP:
        rate = (low + high) / 2
        answers = Run(chooser(arm), WORKLOADS[KNEE].at_rate(rate).lasting(_KNEE_SECONDS), seed).run()
        warm = Figures.of([one for one in answers if one.at >= _KNEE_SINCE])
        if warm.ttft_p90 < KNEE_TTFT:
            low = rate
        else:
            high = rate
    return low


def _processes(plan: Plan) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(plan.jobs or os.cpu_count() or 1, get_context("spawn"))


def _rated(name: str) -> None:
    try:
        WORKLOADS[name].at_rate(1.0)
    except ValueError as error:
        raise SystemExit(f"error: --rate with --workload {name!r}: {error}") from error


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return rate


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
