"""When a worker is asked again: the rule alone, with a clock of the test's own."""

from hypothesis import given
from hypothesis import strategies as st

from discovery.metadata.schedule import FetchSchedule


def test_ten_questions_are_free_then_one_each_fifth_of_a_second() -> None:
    schedule, now, asked = FetchSchedule(), 0.0, 0
    while now < 10:
        asked += 1
        now += schedule.throttle(now)
    assert 55 <= asked <= 65


def test_a_worker_that_is_left_alone_has_its_free_questions_again() -> None:
    schedule = FetchSchedule()
    for _ in range(11):
        pause = schedule.throttle(0.0)
    assert pause > 0
    assert [schedule.throttle(100.0) for _ in range(10)] == [0.0] * 10


def test_after_two_failed_holds_none_is_asked_for_about_a_minute() -> None:
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


def test_a_hold_that_worked_forgets_the_failed_one() -> None:
    schedule = FetchSchedule()
    schedule.hold_failed(0.0)
    schedule.held()
    schedule.hold_failed(1.0)
    assert schedule.may_hold(1.0)


def test_a_worker_that_was_gone_may_hold_when_it_is_back() -> None:
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
def test_the_pause_after_failures_stays_within_five_seconds(unreachable: list[bool]) -> None:
    schedule = FetchSchedule()
    for number, each in enumerate(unreachable, 1):
        assert 0 <= schedule.failed(unreachable=each) <= min(5.0, 0.05 * 2**number)
