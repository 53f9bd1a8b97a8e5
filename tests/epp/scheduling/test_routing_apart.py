"""Prefill and decode apart in virtual time: why it is done, and that the default does it where it is worth it."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from benchmarks.disaggregated import Case, Outcome, Plan, chooser, mixed, tables
from benchmarks.routing.machines import MACHINES, OURS, Machine
from benchmarks.routing.turns import Turn
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import Workload
from examples.simulator.scheduler_model import Limits, SchedulerModel, Work

LIMITS = Limits(step_seconds=0.02, sequence_seconds=0.0, token_seconds=0.0002)


def test_a_prompt_slows_down_whoever_decodes_beside_it_and_a_received_one_does_not() -> None:
    ends = []
    for received in (0, 4000):
        worker = SchedulerModel(LIMITS)
        worker.submit(1, Work(16, 100))
        worker.submit(2, Work(4000, 1, received=received))
        at: float | None = 0.0
        while at is not None:
            last = [token.at for token in worker.advance(at) if token.key == 1 and token.finished]
            if last:
                ends.append(last[0])
                break
            at = worker.next_event(at)
    beside, received_in_time = ends
    assert beside - received_in_time == pytest.approx(4000 * LIMITS.token_seconds, rel=0.05)


def test_blocks_are_held_for_the_other_worker_and_then_cached() -> None:
    worker = SchedulerModel(LIMITS)
    work = Work(160, 1, tuple(b"%d" % block for block in range(10)), held=True)
    worker.submit(1, work)
    worker.advance(0.0)
    worker.advance(1.0)
    copy = worker.fork()
    for one in (worker, copy):
        assert one.load(1.0).held_blocks == 10
        assert one.load(1.0).running == 0
        one.release(1)
        assert one.load(1.0).held_blocks == 0
        assert one.cached_blocks(work.digests) == 10


def outcome(
    way: str,
    prefill: int,
    turns: Callable[[int], Sequence[Turn]],
    transfer: tuple[float, float] = (0.02, 0.00001),
) -> Outcome:
    machine: Machine = replace(MACHINES[OURS], transfer=transfer)
    roles = ("prefill",) * prefill + ("decode",) * (6 - prefill) if prefill else ()
    workload = Workload(turns, workers=6, roles=roles)  # type: ignore[arg-type]
    return Outcome.of(Run(chooser(way, machine), workload, 7, machine).run())


def test_the_default_is_no_worse_than_either_extreme() -> None:
    turns = functools.partial(mixed, seconds=15.0)
    default, always, together = (
        outcome("default", 2, turns), outcome("always apart", 2, turns), outcome("default", 0, turns)
    )  # fmt: skip
    assert (always.apart, together.apart) == (1.0, 0.0)
    assert 0.2 < default.apart < 1.0
    assert default.e2e < 1.02 * min(always.e2e, together.e2e)
    assert default.pace_p90 < together.pace_p90, "decode is not slowed down by prompts"


def test_a_transfer_that_takes_long_is_noticed() -> None:
    turns = functools.partial(mixed, seconds=25.0)
    fast, slow = (outcome("default", 2, turns, transfer) for transfer in ((0.02, 0.0), (1.0, 0.001)))
    assert slow.apart < 0.7 * fast.apart


def test_the_tables_have_a_row_for_each_way_and_split() -> None:
    cases = list(Plan(workloads=("mixed",), seeds=range(1), splits=(0, 2)).cases())
    assert [(case.way, case.prefill) for case in cases] == [
        ("default", 0), ("default", 2), ("always apart", 2)
    ]  # fmt: skip
    some = Outcome(*[1.0] * len(Outcome.__slots__))
    lines = list(tables(cases, [some] * len(cases)))
    assert sum(line.startswith(("| default,", "| always apart,")) for line in lines) == 3
    assert Case("mixed", "fast", "default", 0, 0).name == "default, all do both"
