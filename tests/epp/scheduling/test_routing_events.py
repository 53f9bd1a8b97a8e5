"""Workers that come, go and stand still in virtual time (`benchmarks/routing`)."""

import functools
from dataclasses import replace

import pytest

from benchmarks.routing.arms import ARMS, chooser
from benchmarks.routing.baselines import BASELINES
from benchmarks.routing.figures import Answer
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import Event, Turn, Workload, shared

WAYS = (*ARMS, *BASELINES)
STEADY = Workload(functools.partial(shared, rate=5.0, seconds=6.0, beginning=500))


def answers(way: str, *events: Event, workload: Workload = STEADY) -> list[Answer]:
    found = Run(chooser(way), replace(workload, events=events), seed=0).run()
    assert len(found) == len(workload.turns(0))
    return found


def of(found: list[Answer], worker: str) -> list[Answer]:
    return [one for one in found if one.worker == worker]


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_joins_gets_nothing_before(way: str) -> None:
    found = answers(way, Event(3.0, 4, "join"))
    assert not any(one.failed for one in found)
    assert all(one.at >= 3.0 for one in of(found, "w4"))


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
def test_a_draining_worker_ends_what_it_has(way: str) -> None:
    found = answers(way, Event(3.0, 1, "drain"))
    assert not any(one.failed for one in found)
    assert all(one.at <= 3.0 for one in of(found, "w1"))


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
