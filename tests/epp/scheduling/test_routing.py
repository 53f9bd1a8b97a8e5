"""What users feel of where requests go: workloads in virtual time, by the picker's own scheduling."""

import functools

import pytest

from benchmarks.routing.arms import chooser
from benchmarks.routing.baselines import BASELINES
from benchmarks.routing.figures import Figures
from benchmarks.routing.virtual import Run
from benchmarks.routing.workloads import WORKLOADS, Workload, long_tail, sessions, shared

LEAST_COST, STICKY, ORACLE = "least cost", "the Go picker, sticky", "oracle"
GO, BEFORE = "the Go picker's weights", "the Go picker's weights, learning at the headers"
SHORT = functools.partial(shared, rate=10.0, seconds=20.0)


def figures(name: str, way: str = LEAST_COST) -> Figures:
    return Figures.of(Run(chooser(way), WORKLOADS[name], seed=0).run())


def test_answers_that_are_not_streamed_find_their_prefixes() -> None:
    """Learning at the response headers the prefixes were everywhere, and the median request took five times as long."""
    workload = Workload(SHORT, streamed=False)
    now, before, go = (
        Figures.of(Run(chooser(way), workload, seed=0).run()) for way in (LEAST_COST, BEFORE, GO)
    )
    assert now.hits > before.hits + 0.15
    assert now.e2e_p50 < before.e2e_p50 / 3
    assert now.e2e_p50 <= go.e2e_p50 * 1.05


def test_one_hot_prefix_herds_no_worse_than_with_the_go_picker() -> None:
    assert figures("60 at once, same").ttft <= figures("60 at once, same", GO).ttft + 0.005 < 3.25


def test_distinct_prompts_at_once_are_spread_as_before() -> None:
    now, before = figures("60 at once, distinct"), figures("60 at once, distinct", BEFORE)
    assert now.largest <= 0.25
    assert now.ttft <= before.ttft * 1.02


def test_none_of_300_at_once_gets_most_where_pages_differ_by_a_hair() -> None:
    now, go = figures("300 at once, near ties"), figures("300 at once, near ties", GO)
    assert go.largest == 1.0
    assert now.largest <= 0.6
    assert now.ttft < go.ttft / 2


def test_a_run_is_the_same_every_time() -> None:
    assert figures("60 at once, distinct") == figures("60 at once, distinct")


def of(way: str, workload: Workload, seed: int = 0) -> Figures:
    return Figures.of(Run(chooser(way), workload, seed).run())


def test_the_least_cost_keeps_long_prompts_away_from_others() -> None:
    workload = Workload(functools.partial(long_tail, rate=10.0, seconds=30.0))
    cost, go, sticky = (of(way, workload, seed=1) for way in (LEAST_COST, GO, STICKY))
    assert cost.ttft <= min(go.ttft, sticky.ttft) * 0.6


def test_the_least_cost_serves_growing_sessions_as_an_oracle_would() -> None:
    workload = Workload(functools.partial(sessions, rate=3.0, seconds=15.0))
    cost, go, oracle = (of(way, workload) for way in (LEAST_COST, GO, ORACLE))
    assert cost.ttft <= oracle.ttft * 1.15
    assert cost.ttft <= go.ttft * 0.85


def test_the_least_cost_spreads_one_hot_prefix() -> None:
    cost, go = figures("60 at once, same", LEAST_COST), figures("60 at once, same", GO)
    assert cost.ttft <= go.ttft * 0.65
    assert cost.largest <= 0.25


def test_the_least_cost_finds_shared_prefixes() -> None:
    workload = Workload(SHORT)
    cost, go = of(LEAST_COST, workload), of(GO, workload)
    assert cost.e2e_p50 <= go.e2e_p50 * 1.05
    assert cost.hits >= go.hits - 0.02


def test_what_a_second_picker_sends_spoils_nothing() -> None:
    """Each counter grows by the other picker's prompts too."""
    workload = Workload(functools.partial(long_tail, rate=10.0, seconds=30.0), pickers=2)
    cost, go = of(LEAST_COST, workload, seed=1), of(GO, workload, seed=1)
    assert cost.ttft <= go.ttft
    assert cost.e2e_p50 <= go.e2e_p50 * 0.7


@pytest.mark.parametrize(
    "workload",
    [
        Workload(functools.partial(sessions, rate=3.0, seconds=10.0)),
        Workload(SHORT),
        Workload(functools.partial(long_tail, rate=8.0, seconds=20.0)),
    ],
    ids=["sessions", "shared prompts", "long tail"],
)
def test_our_plugins_pick_as_the_baseline_of_the_sticky_configuration(workload: Workload) -> None:
    """The baseline counts real tokens and blocks of equal size; our plugins estimate both from the bytes of the prompt."""
    ours, theirs = of("the Go picker's sticky configuration", workload), of(STICKY, workload)
    assert ours.ttft == pytest.approx(theirs.ttft, rel=0.15)
    assert ours.hits == pytest.approx(theirs.hits, abs=0.03)
    assert ours.largest == pytest.approx(theirs.largest, abs=0.06)


@pytest.mark.parametrize("way", BASELINES)
def test_each_baseline_serves_every_request_and_is_the_same_every_time(way: str) -> None:
    workload = Workload(functools.partial(shared, rate=4.0, seconds=5.0, beginning=500))
    one = of(way, workload)
    assert one == of(way, workload)
    assert one.largest < 0.9
