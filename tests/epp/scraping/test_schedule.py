import itertools
import random

import pytest

from epp.config.settings import Settings
from epp.endpoints.endpoint import LOOKS
from epp.scraping.schedule import Beat, Cadence, Rhythm


def moments(beat: Beat, count: int, *, in_use: bool, now: float = 0.0) -> list[float]:
    """When an endpoint is looked at that answers at once."""
    found = []
    for _ in range(count):
        found.append(now)
        beat.saw(now, in_use=in_use)
        now = beat.next(now, 0.0)
    return found


def gaps(found: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(found)]


@pytest.mark.parametrize(("in_use", "interval"), [(True, 0.05), (False, 0.6)])
@pytest.mark.parametrize("members", [1, 20, 100])
def test_who_is_in_use_is_looked_at_often_and_nobody_never(
    members: int, in_use: bool, interval: float
) -> None:
    cadence = Cadence(Rhythm(), random.Random(1))
    beats = [cadence.join() for _ in range(members)]
    for beat in beats:
        beat.saw(0.0, in_use=in_use)
    between = gaps(moments(beats[0], 500, in_use=in_use))
    assert sum(between) / len(between) == pytest.approx(interval, rel=0.05)
    assert max(between) <= beats[0].period(0.0)
    assert min(between) > 0


def test_the_age_of_an_idle_endpoints_numbers_stays_within_the_staleness_threshold() -> None:
    period = Cadence(Rhythm(), random.Random(1)).join().period(0.0)
    assert LOOKS * period <= Settings().metrics_staleness_threshold


def test_it_is_looked_at_often_for_a_while_after_its_last_request() -> None:
    beat = Cadence(Rhythm(linger=1.0), random.Random(1)).join()
    beat.saw(0.0, in_use=True)
    beat.saw(0.9, in_use=False)
    assert beat.in_use
    beat.saw(1.0, in_use=False)
    assert not beat.in_use
    beat.use(5.0)
    assert beat.in_use
    assert 0.025 <= beat.soon() <= 0.05


def test_so_many_looks_are_taken_in_all_and_no_more() -> None:
    cadence = Cadence(Rhythm(most=100.0), random.Random(1))
    beats = [cadence.join() for _ in range(20)]
    for beat in beats:
        beat.use(0.0)
    between = gaps(moments(beats[0], 200, in_use=True))
    assert sum(between) / len(between) == pytest.approx(0.2, rel=0.05)
    for beat in beats[1:]:
        beat.leave()
    between = gaps(moments(beats[0], 200, in_use=True))
    assert sum(between) / len(between) == pytest.approx(0.05, rel=0.05)


def test_looks_come_in_groups() -> None:
    cadence = Cadence(Rhythm(), random.Random(1))
    beats = [cadence.join() for _ in range(100)]
    for beat in beats:
        beat.saw(0.0, in_use=False)
    when = [beat.next(10.0, 0.0) for beat in beats]
    assert len(set(when)) <= 5


def test_errors_make_the_pauses_longer_up_to_a_bound() -> None:
    beat = Cadence(Rhythm(backoff=2.0), random.Random(1)).join()
    beat.use(0.0)
    pauses = []
    for _ in range(100):
        beat.missed(0.0, in_use=True)
        pauses.append(beat.next(0.0, 0.0))
    assert pauses[0] == pytest.approx(0.1, rel=0.1)
    assert pauses[:4] == sorted(pauses[:4])
    assert pauses[-1] == pytest.approx(2.0, rel=0.1)
    beat.saw(0.0, in_use=True)
    assert beat.next(0.0, 0.0) == pytest.approx(0.05, rel=0.1)


def test_a_slow_page_is_asked_for_at_most_half_of_the_time() -> None:
    beat = Cadence(Rhythm(), random.Random(1)).join()
    beat.use(0.0)
    assert beat.next(10.0, 0.8) == 10.8
    assert beat.period(0.8) == 1.6


def test_a_fixed_rate_is_the_same_for_all() -> None:
    cadence = Cadence(Rhythm.fixed(10.0), random.Random(1))
    beat = cadence.join()
    assert not beat.can_be_woken
    for in_use in (True, False):
        between = gaps(moments(beat, 200, in_use=in_use))
        assert sum(between) / len(between) == pytest.approx(10.0, rel=0.05)


def test_many_that_come_at_once_are_looked_at_one_after_the_other() -> None:
    cadence = Cadence(Rhythm(most=1000.0), random.Random(1))
    beats = [cadence.join() for _ in range(1000)]
    first = sorted(beat.first() for beat in beats)
    assert first[0] >= 0
    assert 0.95 < first[-1] <= 1.05
    assert max(sum(1 for moment in first if start <= moment < start + 0.1) for start in first) <= 130
    for beat in beats:
        beat.saw(1.0, in_use=False)
    assert cadence.join().first() <= 0.05  # one more is not made to wait for those who were there


@pytest.mark.parametrize("interval", [0.05, 10.0, 600.0])
def test_somebody_new_is_looked_at_at_once_however_seldom_the_others_are(interval: float) -> None:
    cadence = Cadence(Rhythm.fixed(interval), random.Random(1))
    for _ in range(100):
        beat = cadence.join()
        assert 0.0 <= beat.first() <= min(interval / 2, 0.05)
        beat.saw(0.0, in_use=False)


def test_who_leaves_before_the_first_look_keeps_nobody_waiting() -> None:
    cadence = Cadence(Rhythm(most=1.0), random.Random(1))
    beat = cadence.join()
    beat.first()
    beat.leave()
    assert cadence.join().first() <= 0.05


def test_who_left_counts_no_more() -> None:
    cadence = Cadence(Rhythm(), random.Random(1))
    beat = cadence.join()
    beat.use(0.0)
    beat.leave()
    assert (cadence.members, cadence.in_use) == (0, 0)
