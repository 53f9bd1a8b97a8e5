"""The kinds of workers of `benchmarks/routing/machines.py`, and workers that come, go and stand still in virtual time."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.routing import results
from benchmarks.routing.arms import ARMS, chooser
from benchmarks.routing.baseline import Baseline
from benchmarks.routing.baselines import BASELINES
from benchmarks.routing.figures import Answer, Figures
from benchmarks.routing.machines import MACHINES, OURS, Machine, SideBySide, WorkerModel
from benchmarks.routing.results import VirtualResult
from benchmarks.routing.run import Plan, run
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import Event, Turn, Workload, shared
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from examples.simulator.scheduler_model import Emitted, Limits, Work

LIMITS = Limits(max_num_seqs=2, step_seconds=0.02, sequence_seconds=0.01, token_seconds=0.001)


def work(number: int, tokens: int = 160, output: int = 11) -> Work:
    return Work(tokens, output, tuple(b"%d.%d" % (number, block) for block in range(tokens // 16)))


def until(worker: SideBySide, end: float) -> list[Emitted]:
    found = []
    at: float | None = 0.0
    while at is not None and at <= end:
        found += worker.advance(at)
        at = worker.next_event(at)
    return found


def test_prompts_side_by_side_do_not_wait_for_each_other_but_for_room() -> None:
    worker = SideBySide(LIMITS)
    for key in range(3):
        worker.submit(key, work(key))
    tokens = until(worker, 10.0)
    firsts = {one.key: one.at for one in tokens if not one.finished}
    ends = {one.key: one.at for one in tokens if one.finished}
    assert firsts[0] == pytest.approx(0.18)  # alone when it began
    assert firsts[1] == pytest.approx(0.36)  # two run: twice as long
    assert firsts[2] == pytest.approx(ends[0] + 0.36)  # no room until one has ended
    assert ends[0] == pytest.approx(0.18 + 10 * 0.01 * 2)


def test_a_prompt_that_is_cached_takes_no_time() -> None:
    worker = SideBySide(LIMITS)
    worker.submit(1, work(0))
    until(worker, 5.0)
    assert worker.cached_blocks(work(0).digests) == 10
    worker.submit(2, work(0))
    assert worker.advance(5.0) == []
    assert worker.next_event(5.0) == pytest.approx(5.02)
    assert worker.load(5.0).running == 1


def test_a_copy_goes_on_by_itself() -> None:
    worker = SideBySide(LIMITS)
    worker.submit(1, work(0))
    worker.advance(0.0)
    copy = worker.fork()
    copy.submit(2, work(1))
    assert {one.key for one in until(copy, 5.0)} == {1, 2}
    assert {one.key for one in until(worker, 5.0)} == {1}


class Reading(Baseline):
    """Keeps what the pages count, and when first tokens and ends came."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(workers, limits, seed)
        self.counted: list[float | None] = []
        self.begun = self.over = 0
        self.between: list[tuple[float | None, int, int]] = []

    def read(self, worker: int, page: Load, now: float, period: float) -> None:
        self.between.append((page.others.get(PROMPT_TOKENS), self.begun, self.over))

    def first_token(self, wanted: object, worker: int, now: float) -> None:
        self.begun += 1

    def ended(self, wanted: object, worker: int, now: float) -> None:
        self.over += 1


def pages(machine: Machine) -> list[tuple[float | None, int, int]]:
    """What was counted, requests whose answers had begun, and that had ended, of one worker."""
    made: list[Reading] = []

    def make(workers: Sequence[WorkerModel], limits: Limits, seed: int) -> Reading:
        made.append(Reading(workers, limits, seed))
        return made[-1]

    workload = Workload(functools.partial(shared, rate=2.0, seconds=3.0, beginning=100), workers=1)
    Run(make, workload, 0, machine).run()
    return made[0].between


def test_what_pages_count_and_when() -> None:
    begun = [one for one in pages(MACHINES[OURS]) if one[1] > one[2] == 0]
    assert any(counted for counted, _, _ in begun)
    begun = [one for one in pages(MACHINES["counter at the end"]) if one[1] > one[2] == 0]
    assert begun
    assert not any(counted for counted, _, _ in begun)
    assert {counted for counted, _, _ in pages(MACHINES["no counter"])} == {None}


def test_a_row_for_each_machine_a_column_for_each_way_and_the_worst_of_all() -> None:
    figures = Figures(*[2.0] * 14)
    oracle = Figures(*[1.0] * 14)
    found = [
        VirtualResult("long tail", arm, seed, None, None, of, machine)
        for machine in MACHINES
        for seed in (5, 6)
        for arm, of in (("least cost", figures), ("oracle", oracle))
    ]
    lines = list(results.machines_table(found))
    assert lines[0] == "| machine | workload | least cost | oracle |"
    assert lines[2] == "| steps | long tail | 2.00 s (2.00; 2.00 to 2.00) | 1.00 s |"
    assert lines[-1] == "| all | median, worst | 2.00, 2.00 |  |"
    assert len(lines) == 3 + len(MACHINES)


def test_seeds_that_nobody_used_yet() -> None:
    plan = Plan(("growing sessions",), ("least cost",), seeds=1, seconds=1.0, jobs=1, first_seed=7)
    (one,) = run(plan)
    assert (one.seed, one.machine) == (7, OURS)


WAYS = (*ARMS, *BASELINES)
STEADY = Workload(functools.partial(shared, rate=5.0, seconds=6.0, beginning=500))


def answers(way: str, *events: Event, workload: Workload = STEADY) -> list[Answer]:
    found = Run(chooser(way), replace(workload, events=events), seed=0).run()
    assert len(found) == len(workload.turns(0))
    return found


def of(found: list[Answer], worker: str) -> list[Answer]:
    return [one for one in found if one.worker == worker]


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_joins_gets_nothing_before_and_one_that_drains_ends_what_it_has(way: str) -> None:
    joined, drained = answers(way, Event(3.0, 4, "join")), answers(way, Event(3.0, 1, "drain"))
    assert not any(one.failed for one in joined + drained)
    assert all(one.at >= 3.0 for one in of(joined, "w4"))
    assert all(one.at <= 3.0 for one in of(drained, "w1"))


@pytest.mark.parametrize("way", WAYS)
def test_what_a_killed_worker_has_fails_and_it_gets_no_more(way: str) -> None:
    found = answers(way, Event(3.0, 1, "kill"))
    assert all(one.at <= 3.0 for one in of(found, "w1"))
    assert all(one.worker == "w1" and 3.0 <= one.ended <= 3.01 for one in found if one.failed)


@pytest.mark.parametrize(
    "events", [(Event(3.0, 1, "kill"), Event(3.5, 1, "join")), (Event(3.5, 1, "restart"),)]
)
def test_a_killed_worker_comes_back_with_an_empty_cache(events: tuple[Event, ...]) -> None:
    found = answers("round robin", *events)
    again = [one for one in of(found, "w1") if one.at > 3.5]
    assert again
    assert again[0].cached == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_worker_answers_nothing_until_it_continues(way: str) -> None:
    found = answers(way, Event(2.0, 1, "stop"), Event(4.0, 1, "continue"))
    assert not any(one.failed for one in found)
    assert not [one for one in of(found, "w1") if 2.01 < one.first < 4.0 or 2.01 < one.ended < 4.0]


def test_what_a_stopped_worker_computed_takes_as_much_longer() -> None:
    workload = Workload(lambda seed: [Turn(0.0, "abcd" * 100, 10)], workers=1)
    ((usual,), (late,)) = (
        answers("random", *events, workload=workload)
        for events in ((), (Event(0.1, 0, "stop"), Event(5.1, 0, "continue")))
    )
    assert late.ended == pytest.approx(usual.ended + 5.0)


def test_an_adapter_is_loaded_once_where_its_requests_stay() -> None:
    turns = [Turn(at, "abcd" * 100, 5, model="sql") for at in (0.0, 2.0)]
    first, second = answers("random", workload=Workload(lambda seed: turns, workers=1, max_lora=2))
    assert first.first - first.at > second.first - second.at + 0.4
