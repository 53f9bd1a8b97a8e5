import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.scheduling.cached_scores import TIE_BREAK
from epp.scheduling.pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker
from epp.scheduling.plugin import Picker

Kind = type[MaxScorePicker] | type[RandomPicker] | type[WeightedRandomPicker]
PICKERS: list[Kind] = [MaxScorePicker, RandomPicker, WeightedRandomPicker]
SCORES = st.lists(st.floats(-10, 10), min_size=1, max_size=12)


@example(kind=WeightedRandomPicker, scores=[5e-324, 1e-320, 0.0], k=3, seed=0)
@given(kind=st.sampled_from(PICKERS), scores=SCORES, k=st.integers(1, 15), seed=st.integers())
def test_picks_are_different_and_no_more_than_asked_for(
    kind: Kind, scores: list[float], k: int, seed: int
) -> None:
    picked = kind(random.Random(seed)).pick(np.array(scores), k).tolist()
    assert len(picked) == min(k, len(scores))
    assert len(set(picked)) == len(picked)
    assert set(picked) <= set(range(len(scores)))


@given(scores=SCORES, k=st.integers(1, 15), seed=st.integers())
def test_max_score_is_in_the_order_of_the_scores(scores: list[float], k: int, seed: int) -> None:
    picked = MaxScorePicker(random.Random(seed)).pick(np.array(scores), k)
    assert [scores[i] for i in picked] == sorted(scores, reverse=True)[:k]


@pytest.mark.parametrize("last", [float("-inf"), float("nan")])
def test_a_score_that_is_no_number_to_compare_is_picked_once_and_last(last: float) -> None:
    picked = MaxScorePicker(random.Random(1)).pick(np.array([last, 1.0, last, 2.0]), 4).tolist()
    assert picked[:2] == [3, 1]
    assert set(picked[2:]) == {0, 2}


@pytest.mark.parametrize("choice", [2.0, 1.0])
def test_ties_of_fallbacks_are_broken_evenly_as_the_choice_gets_requests(choice: float) -> None:
    picker, fallbacks = MaxScorePicker(random.Random(1)), Counter[int]()
    for inflight in range(3000):
        scores = np.array([choice, 1.0, 1.0, 1.0]) - TIE_BREAK * inflight
        fallbacks.update(picker.pick(scores, 3)[1:].tolist())
    rows = [1, 2, 3] if choice > 1.0 else [0, 1, 2, 3]
    assert sorted(fallbacks) == rows
    assert min(fallbacks.values()) > 0.9 * 6000 / len(rows)


@given(scores=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=12), seed=st.integers())
def test_fallbacks_change_neither_a_choice_nor_the_next_one(scores: list[float], seed: int) -> None:
    alone, first = MaxScorePicker(random.Random(seed)), MaxScorePicker(random.Random(seed))
    column = np.array(scores)
    for _ in range(3):
        assert alone.pick(column, 1)[0] == first.pick(column, 3)[0]


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("kind", PICKERS)
def test_ties_are_broken_evenly(kind: Kind, k: int) -> None:
    picker, scores = kind(random.Random(1)), np.ones(4)
    first = Counter(int(picker.pick(scores, k)[0]) for _ in range(4000))
    assert min(first.values()) > 850


def test_weighted_random_follows_the_weights() -> None:
    picker = WeightedRandomPicker(random.Random(1))
    first = Counter(int(picker.pick(np.array([3.0, 1.0, 0.0]), 1)[0]) for _ in range(4000))
    assert 2850 < first[0] < 3150
    assert first[2] == 0


def test_weighted_random_puts_what_is_worth_nothing_last_by_score() -> None:
    picker = WeightedRandomPicker(random.Random(1))
    for _ in range(50):
        assert picker.pick(np.array([-2.0, 1e-12, 0.0, -1.0]), 4).tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("kind", PICKERS)
def test_one_seed_one_choice(kind: Kind) -> None:
    def choices() -> list[int]:
        picker: Picker = kind(random.Random(7))
        return [int(picker.pick(np.ones(5), 1)[0]) for _ in range(20)]

    assert choices() == choices()
