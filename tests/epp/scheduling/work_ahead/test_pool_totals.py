"""How fast an endpoint is beside the others of its pool, and whether other pickers send there too."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling.work_ahead.ledger import PoolTotals, WorkLedger


def work(ledger: WorkLedger, totals: PoolTotals, speed: float, until: float, others: float = 0.0) -> None:
    """Prompts of 1,000 tokens, four at a time; `others`: what other pickers let it compute, for each token of ours."""
    now, computed = 0.0, 0.0
    ledger.read(computed, 0, 0, now)
    while now < until:
        for _ in range(4):
            ledger.send(1000, 1000, now)
        now += 4_000 / speed
        computed += 4_000 * (1.0 + others)
        ledger.read(computed, 0, 5, now)
        totals.update(ledger)


def test_one_at_half_speed_takes_twice_as_long_as_the_other() -> None:
    totals, fast, slow = PoolTotals(), WorkLedger(), WorkLedger()
    work(fast, totals, 20_000, 60)
    work(slow, totals, 10_000, 60)
    assert totals.slowness(slow) / totals.slowness(fast) == pytest.approx(2.0, rel=0.2)


def test_one_in_the_middle_of_a_long_prompt_is_not_slow_until_it_is_late() -> None:
    """20,000 tokens a second: a prompt of 40,000 takes two."""
    totals, ledger, now = PoolTotals(), WorkLedger(), 0.0
    work(WorkLedger(), totals, 20_000, 60)
    ledger.read(0, 0, 0, now)
    ledger.send(40_000, 40_000, now)
    for late in (False, True):
        for _ in range(17):
            now += 0.1
            ledger.read(0, 0, 1, now)
            totals.update(ledger)
        assert (totals.slowness(ledger) > 1.0) is late


def test_first_bytes_say_how_slow_one_is_where_they_say_what_is_ahead() -> None:
    totals, slow = PoolTotals(), WorkLedger()
    slow.pace.slowness = 1.25
    assert totals.slowness(slow) == 1.0
    slow.hold(held=True)
    assert totals.slowness(slow) == 1.25


def test_one_whose_page_lies_makes_no_other_one_slow() -> None:
    totals, ledgers = PoolTotals(), [WorkLedger() for _ in range(5)]
    for ledger, speed in zip(ledgers, [10**6, 20_000, 20_000, 20_000, 20_000], strict=True):
        work(ledger, totals, speed, 20)
    for ledger in ledgers:
        totals.update(ledger)
    assert totals.slowness(ledgers[0]) == 0.25
    assert [totals.slowness(ledger) for ledger in ledgers[1:]] == [pytest.approx(1.0, abs=0.01)] * 4


def test_a_new_one_is_like_the_average() -> None:
    totals = PoolTotals()
    work(WorkLedger(), totals, 20_000, 20)
    assert totals.slowness(WorkLedger()) == 1.0


def test_a_slow_time_is_forgotten_although_nothing_is_sent_there() -> None:
    totals, fast, slow = PoolTotals(), WorkLedger(), WorkLedger()
    work(slow, totals, 11_000, 60)
    work(fast, totals, 100_000, 60)
    before = totals.slowness(slow)
    for minute in range(60):
        slow.read(10**6, 0, 0, 60.0 * minute + 100)
        totals.update(slow)
    assert before > 1.5
    assert totals.slowness(slow) < 1.2


def test_others_send_if_more_is_computed_than_was_sent() -> None:
    alone, among_others = PoolTotals(), PoolTotals()
    work(WorkLedger(), alone, 20_000, 60, others=0.2)  # tools and templates, which nobody counts
    work(WorkLedger(), among_others, 20_000, 60, others=1.0)
    assert not alone.others_send
    assert among_others.others_send


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e15), st.booleans()), max_size=40))
def test_the_sums_are_those_of_the_ledgers(steps: list[tuple[int, float, bool]]) -> None:
    totals, ledgers, now = PoolTotals(), [WorkLedger() for _ in range(4)], 0.0
    for number, computed, gone in steps:
        now += 0.1
        ledger = ledgers[number]
        if gone:
            totals.forget(ledger)
            ledgers[number] = WorkLedger()
        else:
            ledger.send(1000, 500, now)
            ledger.read(computed, 1, 1, now)
            totals.update(ledger)
        for one in ledgers:
            assert 0.25 <= totals.slowness(one) <= 4.0
        assert math.isfinite(totals.speed)
        assert totals.speed >= 0.0
    for ledger in ledgers:
        totals.forget(ledger)
    assert totals.speed == 0.0
