"""Ten times what the pool can serve, through a real Envoy: what each priority and each tenant gets.

Three simulated workers, a picker and an Envoy are started anew for each picker. Interactive users come alone first, then with
all others. Every seed gives the same requests to each picker.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.overload import from_zero
from benchmarks.overload.arms import WITHOUT, Arm, arms
from benchmarks.overload.client import Users
from benchmarks.overload.load import INTERACTIVE, OVERLOAD, SOURCES, WORKERS, arrivals, capacity
from benchmarks.overload.results import OverloadOutcome, table
from benchmarks.overload.stage import Stage, stage
from benchmarks.process_usage import processor_seconds, resident_megabytes

_UNLOADED: Final = 20.0
"""Seconds at most in which interactive users are alone."""
_PATIENCE: Final = 60.0
_IDLE: Final = 10.0
"""Seconds within which everything is 0 after the last answer."""
_WITHOUT: Final = 12.0
"""Seconds of arrivals at most without flow control: the workers then take minutes to serve what they hold."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds`: of arrivals. `request_ttl`: seconds that a request may wait in the picker."""

    seconds: float = 60.0
    request_ttl: float = 10.0
    seed: int = 0
    go_picker: Path | None = None

    @classmethod
    def from_flags(cls, flags: argparse.Namespace) -> "Plan":
        if flags.quick:
            return cls(12.0, 4.0, go_picker=flags.go_picker)
        return cls(flags.overload_seconds, go_picker=flags.go_picker)

    @property
    def arms(self) -> list[Arm]:
        return arms(self.go_picker, f"{self.request_ttl:g}s")


def add_flags(group: argparse._ArgumentGroup) -> None:
    """`--quick` and `--go-picker` are those of the benchmark picking."""
    group.add_argument("--overload-seconds", type=float, default=60.0, help="of arrivals (%(default)s)")


async def main(plan: Plan) -> None:
    rate = capacity(SOURCES[-1])
    print(
        f"{WORKERS} workers that serve {rate:.1f} requests/s; {OVERLOAD:g} times that for {plan.seconds:g} s"
    )
    for arm in plan.arms:
        shorter = replace(plan, seconds=min(plan.seconds, _WITHOUT)) if arm.name == WITHOUT else plan
        print("\n".join(table(await overloaded(arm, shorter))), flush=True)
    for line in await from_zero.tables(plan.go_picker):
        print(line)


async def overloaded(arm: Arm, plan: Plan) -> OverloadOutcome:
    """Interactive users alone, then everybody."""
    rate = capacity(SOURCES[-1])
    async with stage(arm) as there:
        users = Users(there.port, plan.request_ttl + _PATIENCE)
        alone = min(plan.seconds, _UNLOADED)
        unloaded = await users.send(arrivals(INTERACTIVE, rate, alone, plan.seed + 1))
        begun, used = time.monotonic(), processor_seconds(there.picker)
        fates = await users.send(arrivals(SOURCES, rate, plan.seconds, plan.seed))
        cores = (processor_seconds(there.picker) - used) / (time.monotonic() - begun)
        left = await outstanding(there)
        return OverloadOutcome(arm.name, unloaded, fates, left, cores, resident_megabytes(there.picker))


async def outstanding(there: Stage) -> dict[str, float]:
    """What is not 0 again in time."""
    until = time.monotonic() + _IDLE
    while True:
        left = await there.outstanding()
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(0.1)
