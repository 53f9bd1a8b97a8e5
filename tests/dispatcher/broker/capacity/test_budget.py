"""Budgets, and what others leave to us, told from looks that show ours late."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.broker.capacity.allotment import AllotmentEstimator
from dispatcher.broker.capacity.budget import (
    admits,
    closing_point,
    from_load,
    from_saturation,
    parse_decimal,
    spare,
    system_capacity,
)

PERCENT = [Fraction(percent, 100) for percent in range(101)]
GRID = list(itertools.product(PERCENT, PERCENT))


def dispatchable(capacity: Fraction, budget: Fraction, baseline: Fraction) -> Fraction:
    """N = max_SYS x (D - B)."""
    return capacity * spare(budget, baseline)


def admitted_count(headroom: Fraction, sizes: Sequence[int], *, unseen: int = 0, idle: bool = False) -> int:
    """How many of the waiting requests go, counted from the first."""
    for count, units in enumerate(sizes):
        if not admits(headroom, unseen, units, idle=idle):
            return count
        unseen, idle = unseen + units, False
    return len(sizes)


def test_10_worked_example_of_the_seed_admits_exactly_30() -> None:
    capacity = system_capacity(Fraction(5), Fraction(10))
    budget = from_saturation(parse_decimal("0.3"))
    baseline = parse_decimal("0.1")
    assert baseline is not None
    assert (capacity, budget) == (50, Fraction("0.7"))
    assert dispatchable(capacity, budget, baseline) == 30
    assert admitted_count(dispatchable(capacity, budget, baseline), [1] * 64) == 30


@pytest.mark.parametrize(
    ("budget", "baseline", "expected"),
    [
        ("0.7", "0.1", "0.6"),
        ("0.1", "0.1", "0"),
        ("0.05", "0.1", "0"),
        ("0.5", "0", "0.5"),
        ("1", "0", "1"),
        ("0", "0.05", "0"),
        ("0.03", "0.05", "0"),
        ("0.70", "0.05", "0.65"),
        ("1", "1", "0"),
        ("-0.1", "0", "0"),
        ("1.1", "0", "0"),
    ],
)
def test_budget_table(budget: str, baseline: str, expected: str) -> None:
    assert spare(parse_decimal(budget), Fraction(baseline)) == Fraction(expected)


@pytest.mark.parametrize(
    ("saturation", "threshold", "expected"),
    [
        ("0", "0.8", "0.8"),
        ("0.3", "0.8", "0.5"),
        ("0.8", "0.8", "0"),
        ("0.95", "0.8", "0"),
        ("0.79", "0.8", "0.01"),
        ("0.99", "1", "0.01"),
        ("1.5", "0.8", "0"),
        ("-0.5", "0.8", "0"),
        ("0.05", "0.8", "0.75"),
    ],
)
def test_saturation_table(saturation: str, threshold: str, expected: str) -> None:
    assert spare(from_saturation(parse_decimal(saturation)), 1 - Fraction(threshold)) == Fraction(expected)


@pytest.mark.parametrize(
    ("load", "capacity", "expected"), [("3", 5, "0.4"), ("7", 5, "0"), ("3", 20, "0.85"), ("-1", 5, "0")]
)
def test_load_table(load: str, capacity: int, expected: str) -> None:
    assert from_load(parse_decimal(load), Fraction(capacity)) == Fraction(expected)


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "+Inf",
        "-Inf",
        "inf",
        "",
        "abc",
        "1/2",
        "1_0",
        "0x1",
        "1e",
        "1e999999999",
        "1e301",
        "9" * 81,
        "1.2.3",
        "--1",
        "\u0661",
        "1e5e5",
    ],
)
def test_what_is_no_decimal_number_is_nothing(text: str) -> None:
    assert parse_decimal(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.3", Fraction(3, 10)), (" 1e-05 ", Fraction(1, 100_000)), ("-2.5E+1", Fraction(-25))],
)
def test_decimal_text_is_exact(text: str, value: Fraction) -> None:
    assert parse_decimal(text) == value


def test_unknown_is_closed() -> None:
    assert spare(None, Fraction(0)) == from_saturation(None) == from_load(None, Fraction(5)) == 0
    assert from_saturation(Fraction("1.01")) == from_saturation(Fraction("-0.01")) == 0
    assert system_capacity(None, Fraction(10)) == system_capacity(Fraction(-1), Fraction(10)) == 0
    assert from_load(Fraction(0), Fraction(0)) == 0


def test_ready_servers_gone_while_requests_run() -> None:
    assert dispatchable(system_capacity(Fraction(0), Fraction(10)), Fraction(1), Fraction(0)) == 0
    assert from_load(Fraction(40), system_capacity(Fraction(2), Fraction(10))) == 0
    assert not admits(Fraction(0), 40, 1, idle=False)
    assert not admits(Fraction(0), 0, 1, idle=True)


def test_fractions_agree_with_whole_numbers_where_floats_do_not() -> None:
    wrong = 0
    for capacity in (10, 50, 64, 100, 200):
        for fullness, baseline in GRID:
            percent = 100 - int(fullness * 100) - int(baseline * 100)
            expected = max(0, capacity * percent // 100)
            assert floor(dispatchable(Fraction(capacity), 1 - fullness, baseline)) == expected
            wrong += floor(max(0.0, capacity * (1 - float(fullness) - float(baseline)))) != expected
    assert wrong > 1000  # of 51,005: that is why fractions


@given(
    st.fractions(0, 1),
    st.fractions(0, 1),
    st.integers(0, 1000),
    st.lists(st.integers(1, 50)),
    st.integers(0, 99),
)
def test_what_is_cut_never_exceeds_the_capacity_above_the_baseline(
    budget: Fraction, baseline: Fraction, capacity: int, sizes: list[int], unseen: int
) -> None:
    headroom = dispatchable(Fraction(capacity), budget, baseline)
    load = capacity * (1 - budget)
    admitted = sizes[: admitted_count(headroom, sizes, unseen=unseen)]
    if admitted:
        assert load + unseen + sum(admitted) <= closing_point(Fraction(capacity), baseline)
    elif sizes:
        assert unseen + sizes[0] > headroom


def allotted(estimator: AllotmentEstimator, *looks: tuple[int, int, int]) -> list[int]:
    """Of looks at (time, headroom, in flight)."""
    return [int(estimator.update(at, Fraction(headroom), in_flight)) for at, headroom, in_flight in looks]


def test_ours_that_all_show_are_not_counted_twice() -> None:
    """A line of 75, 10 of others, 30 of ours for a long time: 65 are ours to have."""
    assert allotted(AllotmentEstimator(1500, 200), *((at, 35, 30) for at in range(0, 5000, 200)))[-1] == 65


def test_a_wave_that_does_not_show_yet_allots_no_second_one() -> None:
    """65 are sent after the first look, and show 1.4 s later: no look in between leaves more than there is."""
    waits = ((at, 65 if at < 1400 else 0, 65 if at else 0) for at in range(0, 6000, 200))
    assert set(allotted(AllotmentEstimator(1500, 200), *waits)) == {0, 65}


def test_nothing_is_told_of_too_few_looks() -> None:
    """Another replica may have sent 65 just before the first look."""
    looks = [(at, 65 if at < 1400 else 0, 65) for at in range(0, 6000, 200)]
    told = allotted(AllotmentEstimator(1500, 200), *looks)
    assert set(told[:14]) == {0}
    assert set(told[14:]) == {65}


def test_ours_that_ended_and_still_show_are_not_given_to_others() -> None:
    estimator = AllotmentEstimator(1500, 200)
    level = ((at, 0, 65) for at in range(0, 4000, 200))
    assert allotted(estimator, *level, (4000, 0, 30))[-1] == 30, "the page does not say that there is room"
    assert allotted(estimator, (4200, 35, 30))[-1] == 65


def test_others_that_come_are_minded_at_once_and_those_that_go_after_a_stretch() -> None:
    estimator = AllotmentEstimator(1000, 200)
    before, come = ((at, 0, 65) for at in range(0, 4000, 200)), (4000, 20, 25)
    assert allotted(estimator, *before, come)[-1] == 45
    assert allotted(estimator, *((at, 40, 25) for at in range(4200, 6400, 200)))[-1] == 65
    gone = allotted(estimator, *((at, 60, 25) for at in range(6400, 9400, 200)))
    assert gone[0] == 65
    assert gone[-1] == 85


def test_a_process_that_stood_still_begins_anew() -> None:
    estimator = AllotmentEstimator(1500, 200)
    assert allotted(estimator, *((at, 35, 30) for at in range(0, 4000, 200)))[-1] == 65
    assert allotted(estimator, (60_000, 65, 65)) == [0]
    assert allotted(estimator, *((at, 0, 65) for at in range(60_200, 64_000, 200)))[-1] == 65


def test_looks_farther_apart_than_the_lag() -> None:
    assert allotted(AllotmentEstimator(100, 5000), *((at, 35, 30) for at in range(0, 30_000, 5000)))[-1] == 65


def test_an_older_sample_may_show_ours_as_of_longer_ago() -> None:
    estimator = AllotmentEstimator(0, 200)
    for at in range(0, 4000, 1000):
        estimator.update(at, Fraction(0), 65, age_ms=1500)
    assert estimator.update(4000, Fraction(0), 30, age_ms=1500) == 30
    assert estimator.update(5000, Fraction(35), 30, age_ms=1500) == 65


def test_what_is_kept_is_bounded() -> None:
    estimator = AllotmentEstimator(15_000, 200)
    for at in range(0, 600_000, 200):
        estimator.update(at, Fraction(1), 1)
    assert len(estimator._left) < 200
    assert len(estimator._in_flight) < 100
