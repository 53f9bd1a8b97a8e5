"""`FetchSchedule` with a clock of the test's own."""

from hypothesis import given
from hypothesis import strategies as st

from discovery.metadata.schedule import FetchSchedule


def test_ten_gets_at_once_then_five_a_second() -> None:
    schedule, now, asked = FetchSchedule(), 0.0, 0
    while now < 10:
        asked += 1
        now += schedule.throttle(now)
    assert 55 <= asked <= 65


def test_tokens_refill_while_nothing_is_sent() -> None:
    schedule = FetchSchedule()
    for _ in range(11):
        pause = schedule.throttle(0.0)
    assert pause > 0
    assert [schedule.throttle(100.0) for _ in range(10)] == [0.0] * 10


def test_after_two_failed_holds_the_worker_is_polled_for_about_a_minute() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    assert schedule.may_hold(0.0)
    schedule.answered()
    schedule.hold_failed(1.0)
    assert not schedule.may_hold(50.0)
    assert schedule.next_hold(50.0) > 1
    assert schedule.may_hold(70.0)
    schedule.hold_failed(70.0)
    assert not schedule.may_hold(120.0), "one more try, not two"


def test_a_successful_hold_resets_the_count_of_failed_ones() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    schedule.held()
    schedule.hold_failed(1.0)
    assert schedule.may_hold(1.0)


def test_after_a_restart_gets_may_be_held_again() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    schedule.hold_failed(0.0)
    schedule.failed(unreachable=True)
    schedule.answered()
    assert not schedule.may_hold(0.0), "only the GET that was to be held failed"
    for _ in range(2):
        schedule.failed(unreachable=True)
    assert not schedule.may_hold(0.0), "not before it answers"
    schedule.answered()
    assert schedule.may_hold(0.0)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_delay_after_failures_is_at_most_five_seconds(unreachable: list[bool]) -> None:
    schedule = FetchSchedule()
    for number, each in enumerate(unreachable, 1):
        assert 0 <= schedule.failed(unreachable=each) <= min(5.0, 0.05 * 2**number)


def test_a_frozen_worker_is_asked_again_at_once() -> None:
    """Each GET waits for seconds: after a long freeze, the next one must not be seconds away."""
    schedule = FetchSchedule()
    assert max(schedule.failed(unreachable=True, frozen=True) for _ in range(50)) <= 0.1
    assert max(schedule.failed(unreachable=True) for _ in range(50)) > 1
