"""What others leave to us, told from looks that show ours late."""

from fractions import Fraction

from dispatcher.broker.capacity.allotment import AllotmentEstimator


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
    for at in range(0, 3_600_000, 200):
        estimator.update(at, Fraction(1), 1)
    assert len(estimator._left) < 200
    assert len(estimator._in_flight) < 100
