import itertools
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from epp.config.settings import Settings
from epp.endpoints.endpoint import STALE_AFTER_SCRAPES
from epp.scraping.schedule import EndpointSchedule, ScrapeIntervals, ScrapeSchedule


def moments(endpoint: EndpointSchedule, count: int, *, in_use: bool, now: float = 0.0) -> list[float]:
    """When an endpoint is looked at that answers at once."""
    found = []
    for _ in range(count):
        found.append(now)
        endpoint.succeed(now, in_use=in_use)
        now = endpoint.next_at(now, 0.0)
    return found


def gaps(found: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(found)]


@pytest.mark.parametrize(("in_use", "interval"), [(True, 0.05), (False, 0.6)])
@pytest.mark.parametrize("members", [1, 20, 100])
def test_who_is_in_use_is_looked_at_often_and_nobody_never(
    members: int, in_use: bool, interval: float
) -> None:
    schedule = ScrapeSchedule(ScrapeIntervals(), random.Random(1))
    endpoints = [schedule.add() for _ in range(members)]
    for endpoint in endpoints:
        endpoint.succeed(0.0, in_use=in_use)
    between = gaps(moments(endpoints[0], 500, in_use=in_use))
    assert sum(between) / len(between) == pytest.approx(interval, rel=0.05)
    assert max(between) <= endpoints[0].period(0.0)
    assert min(between) > 0


def test_the_age_of_an_idle_endpoints_numbers_stays_within_the_staleness_threshold() -> None:
    period = ScrapeSchedule(ScrapeIntervals(), random.Random(1)).add().period(0.0)
    assert STALE_AFTER_SCRAPES * period <= Settings().metrics_staleness_threshold


def test_it_is_looked_at_often_for_a_while_after_its_last_request() -> None:
    endpoint = ScrapeSchedule(ScrapeIntervals(linger=1.0), random.Random(1)).add()
    endpoint.succeed(0.0, in_use=True)
    endpoint.succeed(0.9, in_use=False)
    assert endpoint.in_use
    endpoint.succeed(1.0, in_use=False)
    assert not endpoint.in_use
    endpoint.mark_used(5.0)
    assert endpoint.in_use
    assert 0.025 <= endpoint.wake_delay() <= 0.05


def test_so_many_looks_are_taken_in_all_and_no_more() -> None:
    schedule = ScrapeSchedule(ScrapeIntervals(max_per_second=100.0), random.Random(1))
    endpoints = [schedule.add() for _ in range(20)]
    for endpoint in endpoints:
        endpoint.mark_used(0.0)
    between = gaps(moments(endpoints[0], 200, in_use=True))
    assert sum(between) / len(between) == pytest.approx(0.2, rel=0.05)
    for endpoint in endpoints[1:]:
        endpoint.remove()
    between = gaps(moments(endpoints[0], 200, in_use=True))
    assert sum(between) / len(between) == pytest.approx(0.05, rel=0.05)


def test_looks_come_in_groups() -> None:
    schedule = ScrapeSchedule(ScrapeIntervals(), random.Random(1))
    endpoints = [schedule.add() for _ in range(100)]
    for endpoint in endpoints:
        endpoint.succeed(0.0, in_use=False)
    when = [endpoint.next_at(10.0, 0.0) for endpoint in endpoints]
    assert len(set(when)) <= 5


def test_errors_make_the_pauses_longer_up_to_a_bound() -> None:
    endpoint = ScrapeSchedule(ScrapeIntervals(backoff=2.0), random.Random(1)).add()
    endpoint.mark_used(0.0)
    pauses = []
    for _ in range(100):
        endpoint.fail(0.0, in_use=True)
        pauses.append(endpoint.next_at(0.0, 0.0))
    assert pauses[0] == pytest.approx(0.1, rel=0.1)
    assert pauses[:4] == sorted(pauses[:4])
    assert pauses[-1] == pytest.approx(2.0, rel=0.1)
    endpoint.succeed(0.0, in_use=True)
    assert endpoint.next_at(0.0, 0.0) == pytest.approx(0.05, rel=0.1)


def test_a_slow_page_is_asked_for_at_most_half_of_the_time() -> None:
    endpoint = ScrapeSchedule(ScrapeIntervals(), random.Random(1)).add()
    endpoint.mark_used(0.0)
    assert endpoint.next_at(10.0, 0.8) == 10.8
    assert endpoint.period(0.8) == 1.6


def test_a_fixed_rate_is_the_same_for_all() -> None:
    schedule = ScrapeSchedule(ScrapeIntervals.fixed(10.0), random.Random(1))
    endpoint = schedule.add()
    assert not endpoint.can_wake
    for in_use in (True, False):
        between = gaps(moments(endpoint, 200, in_use=in_use))
        assert sum(between) / len(between) == pytest.approx(10.0, rel=0.05)


def test_many_that_come_at_once_are_looked_at_one_after_the_other() -> None:
    schedule = ScrapeSchedule(ScrapeIntervals(max_per_second=1000.0), random.Random(1))
    endpoints = [schedule.add() for _ in range(1000)]
    first = sorted(endpoint.first_delay() for endpoint in endpoints)
    assert first[0] >= 0
    assert 0.95 < first[-1] <= 1.05
    assert max(sum(1 for moment in first if start <= moment < start + 0.1) for start in first) <= 130
    for endpoint in endpoints:
        endpoint.succeed(1.0, in_use=False)
    assert schedule.add().first_delay() <= 0.05  # one more is not made to wait for those who were there


@pytest.mark.parametrize("interval", [0.05, 10.0, 600.0])
def test_somebody_new_is_looked_at_at_once_however_seldom_the_others_are(interval: float) -> None:
    schedule = ScrapeSchedule(ScrapeIntervals.fixed(interval), random.Random(1))
    for _ in range(100):
        endpoint = schedule.add()
        assert 0.0 <= endpoint.first_delay() <= min(interval / 2, 0.05)
        endpoint.succeed(0.0, in_use=False)


def test_who_leaves_before_the_first_look_keeps_nobody_waiting() -> None:
    schedule = ScrapeSchedule(ScrapeIntervals(max_per_second=1.0), random.Random(1))
    endpoint = schedule.add()
    endpoint.first_delay()
    endpoint.remove()
    assert schedule.add().first_delay() <= 0.05


def test_who_left_counts_no_more() -> None:
    schedule = ScrapeSchedule(ScrapeIntervals(), random.Random(1))
    endpoint = schedule.add()
    endpoint.mark_used(0.0)
    endpoint.remove()
    assert (schedule.endpoints, schedule.in_use) == (0, 0)


def seconds_late(durations: list[float], endpoint: EndpointSchedule) -> list[float]:
    """How long each page was late, of an endpoint in use."""
    found, now = list[float](), 0.0
    for took in durations:
        found.append(max(0.0, took - endpoint.patience))
        now += took
        counted = endpoint.page_took(took)
        endpoint.succeed(now, in_use=True)
        now = endpoint.next_at(now, counted)
    return found


def new_endpoint() -> EndpointSchedule:
    return ScrapeSchedule(ScrapeIntervals(), random.Random(1)).add()


@given(st.lists(st.floats(0.0, 0.1), max_size=30))
def test_a_page_within_two_looks_is_not_late(durations: list[float]) -> None:
    assert set(seconds_late(durations, new_endpoint())) <= {0.0}


@given(st.floats(0.0, 0.9), st.lists(st.floats(0.5, 1.0), min_size=3, max_size=60))
def test_pages_that_always_take_long_are_not_late(longest: float, shares: list[float]) -> None:
    late = seconds_late([longest * share for share in shares], new_endpoint())
    assert set(late[2:]) <= {0.0}


def test_pages_that_take_long_now_and_then_are_late_seldom() -> None:
    rng = random.Random(1)
    durations = [rng.choice([0.02, 0.25]) for _ in range(1000)]
    assert sum(seconds_late(durations, new_endpoint())) < 0.01 * sum(durations)
    seldom = [0.25 if number % 20 == 0 else 0.02 for number in range(1000)]
    assert sum(seconds_late(seldom, new_endpoint())) <= 0.15 * 50 + 1e-6, "only while nothing was to be seen"


@given(st.floats(0.0, 0.05), st.floats(0.1, 3600.0))
def test_a_worker_that_was_stopped_is_as_quick_as_before(usual: float, stopped: float) -> None:
    endpoint = new_endpoint()
    seconds_late([usual] * 3, endpoint)
    before = endpoint.patience
    assert endpoint.page_took(stopped) <= before
    endpoint.succeed(stopped, in_use=True)
    assert endpoint.patience == before
    assert endpoint.next_at(stopped, endpoint.page_took(usual)) - stopped <= 0.06


@given(st.lists(st.floats(0.0, 3600.0), min_size=1, max_size=30))
def test_patience_has_an_end(durations: list[float]) -> None:
    endpoint = new_endpoint()
    seconds_late(durations, endpoint)
    assert 0.1 <= endpoint.patience <= 1.0


def test_the_first_page_counts_as_long_as_it_took() -> None:
    assert new_endpoint().page_took(0.7) == 0.7


def test_slow_pages_are_forgotten_after_sixteen_others() -> None:
    endpoint = new_endpoint()
    seconds_late([0.4, 0.4], endpoint)
    assert endpoint.patience == 0.8
    seconds_late([0.01] * 16, endpoint)
    assert endpoint.patience == 0.1
