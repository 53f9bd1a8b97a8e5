"""How many requests are lost when workers fail, and why: each scenario with and without ejection and fallbacks.

Four simulated workers, a picker and an Envoy are started anew for each cell. Users ask at a steady rate, half of them for
streamed answers. Nothing happens for a quarter of the time.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.failing.arms import ARMS, FailingArm
from benchmarks.failing.client import OK, SteadyUsers
from benchmarks.failing.scenarios import POISONED, SCENARIOS, WORKERS, Scenario
from benchmarks.failing.stage import FailingStage, failing_stage


@dataclass(frozen=True, slots=True)
class FailingPlan:
    """`rate`: requests a second, `streamed`: the share of them whose answer is. `patience`: seconds that a user waits for a
    whole answer."""

    seconds: float = 16.0
    rate: float = 40.0
    patience: float = 10.0
    streamed: float = 0.5
    only: str = ""
    arm: str = ""
    workers: int = WORKERS

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> "FailingPlan":
        return cls(
            seconds=8.0 if flags.quick else 16.0,
            only=flags.failing_scenario,
            arm=flags.failing_arm,
            workers=flags.failing_workers,
        )


def add_flags(group: argparse._ArgumentGroup) -> None:
    """`--quick` is that of the benchmark picking."""
    group.add_argument(
        "--failing-scenario", default="", metavar="TEXT", help="only scenarios with this in their name"
    )
    group.add_argument("--failing-arm", default="", metavar="TEXT", help="only arms with this in their name")
    group.add_argument("--failing-workers", type=int, default=WORKERS, metavar="N", help="of each pool")


async def main(plan: FailingPlan) -> None:
    total, arms = int(plan.seconds * plan.rate), [arm for arm in ARMS if plan.arm in arm.name]
    print(f"{total} requests in {plan.seconds:g} s; the fault begins after {plan.seconds / 4:g} s")
    print(f"\n| | {' | '.join(arm.name for arm in arms)} |\n|---|{'---|' * len(arms)}")
    for name, scenario in SCENARIOS.items():
        if plan.only in name:
            cells = [_cell(await lost(arm, scenario, plan)) for arm in arms]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


async def lost(arm: FailingArm, scenario: Scenario, plan: FailingPlan) -> Counter[str]:
    """What became of all requests of users, by cause; and the ejections, where somebody poisons the pool."""
    async with failing_stage(arm, plan.workers) as stage:
        users = SteadyUsers(
            stage.port, rate=plan.rate, streamed=plan.streamed, patience=plan.patience, seed=len(arm.name)
        )
        async with asyncio.TaskGroup() as group:
            happening = group.create_task(_happen(scenario, stage, plan))
            outcomes = await users.send(plan.seconds)
            happening.cancel()
        return outcomes + (await stage.ejections() if scenario is SCENARIOS[POISONED] else Counter())


async def _happen(scenario: Scenario, stage: FailingStage, plan: FailingPlan) -> None:
    await asyncio.sleep(plan.seconds / 4)
    await scenario(stage.workers)
    if scenario is SCENARIOS[POISONED]:
        poisoner = SteadyUsers(
            stage.port,
            rate=plan.rate / 4,
            streamed=1.0,
            patience=plan.patience,
            seed=0,
            prompt="poison".format,
        )
        await poisoner.send(plan.seconds)


def _cell(outcomes: Counter[str]) -> str:
    causes = Counter({cause: count for cause, count in outcomes.items() if cause != OK})
    return "; ".join(_said(causes)) or "0"


def _said(causes: Counter[str]) -> Iterator[str]:
    if len(causes) > 1:
        yield f"{causes.total()} in all"
    for cause, count in causes.most_common():
        yield f"{count} {cause}"
