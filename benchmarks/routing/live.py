"""Compares pickers in real time: on the same prompts, behind the same real Envoy, over the same simulated workers.

Each run starts everything anew, so that all caches are cold: the simulators, which are processes of their own, one or two
pickers, and an Envoy for each. The pickers take turns within a seed, in another order with each seed. The client sends each
request when the workload says so, whatever became of those before it; only a turn of a session follows the answer to the one
before. TTFT is from the moment when a request leaves the client to the first bytes of a streamed body that it reads. So it
includes Envoy, the picker, the simulator's queue, and what the machine itself makes them wait. If an answer is not streamed,
TTFT is its end.

All seconds are simulated ones: `--speed` of them pass in a real one, so the workers are that much faster than those of the
runs in virtual time, and pages, which pickers read every 50 real ms, are that much older. Bursts and workers that stand still
run slower. Each run prints how many cores its programs used, and how late its requests left (p50, p99, most). A run where
more than one request in a hundred was over 50 ms late is thrown out, and repeated once. It is meaningless while other work
fills the machine: `machine` is what all programs used together.

`--worker` has llm-d-inference-sim in place of our simulator: it computes prompts side by side, a token is a word there, and it
publishes KV events, which the arms with precise knowledge read.

Not measured: networks between machines, tokenizers (a token is four letters, everywhere), and workers that are no simulator.
Envoy shows the answers to the Go picker and not to ours, as each one's own configuration says; what that costs is in the
figures. Endpoints come from a file that both pickers watch: one that joins, drains or is killed is in it or not at once.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.routing import live_results, live_stage
from benchmarks.routing.live_arms import BY_DEFAULT, LiveArm, arms
from benchmarks.routing.live_results import Result
from benchmarks.routing.live_workers import InferenceSim, Workers, fork_server
from benchmarks.routing.workloads import WORKLOADS, Workload

TARGETS: Final = (
    "shared, streamed",
    "shared, Zipf",
    "shared, not streamed",
    "growing sessions",
    "long tail",
    "60 at once, same",
    "60 at once, distinct",
    "shared, one at half speed",
    "shared, one joins",
)
"""Run where no `--workload` is given: in 35 minutes with three arms."""
_SPEEDS: Final[Mapping[str, float]] = {
    "60 at once, same": 1.0,
    "60 at once, distinct": 2.0,
    "shared, one stands still for 5 s": 1.0,
}
"""At most: many requests at once keep the machine itself busy for a while, which counts less so; and pickers notice a worker
that stands still after a time in real seconds.
"""
_LONGER: Final[Mapping[str, float]] = {"growing sessions": 1.5}
"""Times `--seconds`: they fill the caches late."""
_AFTER_EVENTS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds`: of arrivals. `attempts`: for a run whose client was late."""

    workloads: Sequence[str]
    arms: Sequence[LiveArm]
    seeds: int
    speed: float
    seconds: float
    out: Path | None = None
    attempts: int = 2
    first_seed: int = 0
    worker: Path | None = None

    def simulators(self) -> contextlib.AbstractAsyncContextManager[Workers]:
        return fork_server() if self.worker is None else contextlib.nullcontext(InferenceSim(self.worker))

    def workload(self, name: str) -> Workload:
        """With arrivals for as long as planned, and for 10 s after the last event."""
        seconds = self.seconds * _LONGER.get(name, 1.0)
        ends = (event.at + _AFTER_EVENTS for event in WORKLOADS[name].events)
        return WORKLOADS[name].lasting(max(seconds, *ends, 0.0))

    def speed_of(self, name: str) -> float:
        return min(self.speed, _SPEEDS.get(name, self.speed))


async def main(plan: Plan) -> list[Result]:
    """Returns the results of all runs, also of those that `out` has from before."""
    results = live_results.read(plan.out)
    if any((one.speed, one.arrivals) != (plan.speed_of(one.workload), plan.seconds) for one in results):
        raise SystemExit(f"error: {plan.out} has runs with another --speed or --seconds; give another --out")
    async with plan.simulators() as server:
        for seed in range(plan.first_seed, plan.first_seed + plan.seeds):
            for name in plan.workloads:
                first = seed % len(plan.arms)
                for arm in (*plan.arms[first:], *plan.arms[:first]):
                    before = [one for one in results if one.key == (name, arm.name, seed)]
                    results += await _runs(plan, server, arm, name, seed, before)
    return results


async def _runs(
    plan: Plan, server: Workers, arm: LiveArm, name: str, seed: int, before: Sequence[Result]
) -> list[Result]:
    """The runs that are still needed: none, one, or one more if the client was late."""
    done, key = list(before), (name, arm.name, seed)
    workload, speed = plan.workload(name).times(server.rate), plan.speed_of(name)
    turns = workload.turns(seed)
    while len(done) < plan.attempts and all(one.too_late for one in done):
        gc.collect()
        gc.disable()  # a collection would make requests late
        outcome = await live_stage.run(server, arm, workload, turns, speed)
        gc.enable()
        done.append(Result.of(key, speed, plan.seconds, workload, outcome))
        live_results.append(plan.out, done[-1])
        print(done[-1].line(), file=sys.stderr, flush=True)
    return done[len(before) :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing.live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    possible = [name for name, workload in WORKLOADS.items() if not workload.kv_usage]
    parser.add_argument(
        "--go-picker", type=Path, metavar="FILE", help="the Go picker's binary; without it, only ours"
    )
    parser.add_argument(
        "--workload",
        action="append",
        choices=possible,
        metavar="NAME",
        help=f"of {', '.join(possible)}; may be repeated; default: {', '.join(TARGETS)}",
    )
    parser.add_argument(
        "--arm",
        action="append",
        metavar="NAME",
        help=f"of {', '.join(arms(Path()))}; may be repeated; default: {', '.join(BY_DEFAULT)}",
    )
    parser.add_argument(
        "--worker",
        type=Path,
        metavar="FILE",
        help="the binary of llm-d-inference-sim as the worker; default: our simulator",
    )
    _add_amounts(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON lines, one a run; runs that it has are not repeated"
    )
    return parser


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--speed", type=float, default=3.0, help="simulated seconds in a real one (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=36.0, help="simulated ones, of arrivals (%(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, 8 s of arrivals")


def _plan(arguments: Sequence[str] | None = None) -> Plan:
    parser = _parser()
    given = parser.parse_args(arguments)
    there = arms(given.go_picker)
    if given.worker is not None and not os.access(given.worker, os.X_OK):
        parser.error(f"--worker {given.worker}: expected the built program of llm-d-inference-sim")
    if unknown := [name for name in given.arm or () if name not in there]:
        parser.error(f"there is no arm {unknown[0]!r}; there are {', '.join(there)}")
    return Plan(
        workloads=given.workload or TARGETS,
        arms=[there[name] for name in given.arm or BY_DEFAULT if name in there],
        seeds=1 if given.quick else given.seeds,
        speed=given.speed,
        seconds=8.0 if given.quick else given.seconds,
        out=given.out,
        first_seed=given.first_seed,
        worker=given.worker,
    )


async def _run(plan: Plan) -> None:
    # SIGTERM ends the programs of a run too, as SIGINT does
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    for line in live_results.tables(await main(plan)):
        print(line)


if __name__ == "__main__":
    try:
        asyncio.run(_run(_plan()))
    except asyncio.CancelledError:
        sys.exit(1)
