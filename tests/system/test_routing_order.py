"""The order of ways to choose that `python -m benchmarks routing --quick` shows; in virtual time, so always the same."""

import functools
from collections.abc import Mapping

import pytest

from benchmarks.routing.figures import Figures, median
from benchmarks.routing.run import Plan, run

COST, GO, STICKY, TURNS, ORACLE = (
    "least cost", "the Go picker's weights", "the Go picker, sticky", "round robin", "oracle"
)  # fmt: skip


@functools.cache
def medians() -> Mapping[str, Mapping[str, Figures]]:
    """By workload and way to choose."""
    runs: dict[str, dict[str, list[Figures]]] = {}
    for one in run(Plan.quick()):
        runs.setdefault(one.workload, {}).setdefault(one.arm, []).append(one.figures)
    return {name: {arm: median(figures) for arm, figures in arms.items()} for name, arms in runs.items()}


def ttft(workload: str, arm: str) -> float:
    return medians()[workload][arm].ttft


@pytest.mark.timeout(1200)
def test_all_is_better_than_round_robin_where_prefixes_are_shared() -> None:
    for arm in (COST, GO, STICKY, ORACLE):
        assert ttft("shared, streamed", arm) < ttft("shared, streamed", TURNS) / 4


@pytest.mark.timeout(1200)
def test_the_least_cost_stands_beside_the_oracle() -> None:
    for workload in ("growing sessions", "60 at once, same", "fan-out"):
        assert ttft(workload, COST) <= 1.15 * ttft(workload, ORACLE)


@pytest.mark.timeout(1200)
def test_the_least_cost_comes_before_both_configurations_of_the_go_picker() -> None:
    for workload, ratio in (
        ("growing sessions", 1.0),
        ("long tail", 0.75),
        ("60 at once, same", 0.65),
        ("fan-out", 1.0),
    ):
        assert ttft(workload, COST) <= ratio * min(ttft(workload, GO), ttft(workload, STICKY))


@pytest.mark.timeout(1200)
def test_the_sticky_configuration_comes_before_the_weights_where_prefixes_are_shared() -> None:
    for workload in ("shared, streamed", "growing sessions"):
        assert ttft(workload, STICKY) <= ttft(workload, GO)
