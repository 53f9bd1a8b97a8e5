"""The prompts that were sent to one endpoint and are not computed yet; and how fast it is beside the others of its pool."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scheduling.work_ahead.ledger import TRANSIT, PoolTotals, SentPrompt, WorkLedger
from epp.scheduling.work_ahead.prompt_counter import CountedEnds
from epp.scheduling.work_ahead.savepoint import Savepoint

MANY = 1000.0
"""Requests that a page shows: so many that it says nothing of what is computed."""


def begun(computed: float = 0.0) -> WorkLedger:
    ledger = WorkLedger()
    ledger.read(computed, 0, 0, 0.0)
    return ledger


def begun_of(pool: CountedEnds) -> WorkLedger:
    ledger = WorkLedger(ends=pool)
    ledger.read(0.0, 0, 0, 0.0)
    return ledger


def test_what_was_sent_is_ahead_until_the_counter_has_grown_by_it() -> None:
    ledger = begun(5_000)
    ledger.send(1000, 400, 1.0)
    ledger.send(2000, 2000, 1.1)
    assert ledger.ahead == 2400
    ledger.read(5_900, 0, MANY, 1.2)
    assert ledger.ahead == 2400
    ledger.read(6_000, 0, MANY, 1.3)
    assert ledger.ahead == 2000
    ledger.read(8_000, 0, MANY, 1.4)
    assert ledger.ahead == 0


def test_a_withdrawn_prompt_is_not_ahead_and_takes_no_growth() -> None:
    ledger = begun()
    first, second = ledger.send(1000, 1000, 1.0), ledger.send(500, 500, 1.0)
    ledger.withdraw(first)
    ledger.withdraw(first)
    assert ledger.ahead == 500
    ledger.read(510, 0, MANY, 1.1)
    assert ledger.ahead == 0
    ledger.withdraw(second)
    assert ledger.ahead == 0


def test_what_another_worker_goes_on_with_is_computed_before_the_counter_says_so() -> None:
    ledger = begun()
    ledger.read(0, 0, 0, 0.9)
    first, second = ledger.send(1000, 800, 1.0), ledger.send(500, 500, 1.0)
    ledger.finish(first)
    assert ledger.ahead == 500
    ledger.read(1_000, 0, MANY, 1.1)
    assert (ledger.ahead, second.tokens) == (500, 500), "the growth was that of the first one"
    assert ledger.done == 950, "which shows how fast the worker is"
    ledger.read(1_500, 0, MANY, 1.2)
    ledger.finish(second)
    assert ledger.ahead == 0


def test_without_a_counter_it_is_done_at_once() -> None:
    ledger = WorkLedger()
    ledger.hold(True)
    first, second = ledger.send(1000, 800, 1.0), ledger.send(500, 500, 1.0)
    ledger.finish(first)
    assert (ledger.ahead, first.tokens) == (500, 0)
    ledger.withdraw(second)
    assert ledger.ahead == 0


def test_a_page_that_shows_fewer_requests_ends_the_oldest() -> None:
    """A prompt that is not computed waits or runs: with nothing there, nothing is ahead, whatever the counter says."""
    ledger = begun()
    for _ in range(3):
        ledger.send(1000, 1000, 1.0)
    ledger.read(0, 0, 1, 1.0 + TRANSIT / 2)  # they may not have arrived yet
    assert ledger.ahead == 3000
    ledger.read(0, 0, 1, 1.1 + TRANSIT)
    assert ledger.ahead == 1000
    ledger.read(0, 0, 0, 1.2 + TRANSIT)
    assert ledger.ahead == 0


def test_a_counter_that_falls_is_that_of_a_new_process() -> None:
    ledger = begun(9_000)
    ledger.send(1000, 1000, 1.0)
    ledger.read(10, 0, MANY, 1.1)
    assert ledger.ahead == 0
    ledger.send(1000, 1000, 1.2)
    ledger.read(900, 0, MANY, 1.3)
    assert ledger.ahead == 1000


def test_without_a_counter_a_prompt_is_ahead_until_somebody_says_otherwise() -> None:
    ledger = WorkLedger()
    prompt = ledger.send(1000, 1000, 1.0)
    ledger.read(-1, 1, 0, 2.0)
    assert ledger.ahead == 1000
    ledger.withdraw(prompt)
    assert ledger.ahead == 0


def test_a_worker_whose_page_is_never_read_keeps_nothing() -> None:
    ledger = WorkLedger()
    for _ in range(100):
        ledger.withdraw(ledger.send(1000, 1000, 1.0))
    assert not ledger._sent


def test_what_others_send_makes_nothing_of_ours_vanish() -> None:
    """Another picker sends as much as we do: on average half of the growth is ours."""
    ledger = begun()
    now, computed = 0.0, 0.0
    for _ in range(1000):
        now += 0.1
        ledger.send(2000, 2000, now)
        computed += 4000
        ledger.read(computed, 0, MANY, now)
    left = ledger.ahead
    for _ in range(10):
        now += 0.1
        ledger.send(2000, 2000, now)
    ledger.read(computed + 20_000, 0, MANY, now)  # 10,000 of them are ours
    assert left + 10_000 == pytest.approx(ledger.ahead, abs=4000)


def test_a_wrong_guess_of_tokens_does_not_pile_up() -> None:
    """4 bytes a token are a guess: the worker counts a fifth less, for hours, and is never idle."""
    ledger = begun()
    now, computed, after = 0.0, 0.0, list[float]()
    for step in range(20_000):
        now += 0.1
        ledger.send(2000, 2000, now)
        computed += 1600
        ledger.read(computed, 0, MANY, now)
        if step == 200:
            savepoint = Savepoint()
            ledger.save(savepoint)
            ledger.read(computed, 0, 3, now + 1)
            assert ledger.ahead == 6000  # the requests that are there bound it meanwhile
            savepoint.restore()
        if step in (9_999, 19_999):
            after.append(ledger.ahead)
    assert after == [0, 0]  # 4 million more without the scale


def test_a_prompt_weighs_as_much_as_the_growth_of_the_counter_by_it() -> None:
    """Although it is sent before: else as many would seem to be ahead as waited on average."""
    ledger = begun()
    now, computed = 0.0, 0.0
    for step in range(400):
        now += 1.0
        for _ in range(step % 5):
            ledger.send(6000, 1000, now)
        for left in reversed(range(step % 5)):
            now += 0.1
            computed += 6000
            ledger.read(computed, 0, MANY, now)
            assert ledger.ahead == 1000 * left


def test_what_waits_by_the_page_is_not_computed_whatever_the_counter_says() -> None:
    ledger = begun()
    for _ in range(5):
        ledger.send(1000, 1000, 1.0)
    ledger.read(10**6, 3, MANY, 1.1)
    assert ledger.ahead == 3000


def test_what_waits_does_not_make_the_counter_count_more() -> None:
    """At the start much is sent before the counter moves; it is not ahead of the counter for that."""
    ledger = begun()
    for _ in range(15):
        ledger.send(6000, 6000, 1.0)
    ledger.read(6000, 0, MANY, 2.0)
    ledger.read(12_000, 0, MANY, 3.0)
    assert ledger.ahead == 13 * 6000


def test_what_failed_is_not_taken_for_computed() -> None:
    """A worker refuses every second request: its counter tells of the others as it stands."""
    ledger = begun()
    now, computed = 0.0, 0.0
    for _ in range(1000):
        now += 0.1
        ledger.fail(ledger.send(2000, 2000, now))
        ledger.send(2000, 2000, now)
        computed += 2000
        ledger.read(computed, 0, MANY, now)
    left = ledger.ahead
    for _ in range(10):
        ledger.send(2000, 2000, now)
    ledger.read(computed + 10_000, 0, MANY, now + 0.1)
    assert ledger.ahead == pytest.approx(left + 10_000, abs=2000)


def test_a_leap_of_the_counter_is_forgotten() -> None:
    ledger = begun()
    ledger.read(1e15, 0, 0, 1.0)
    ledger.send(8000, 8000, 1.1)
    ledger.read(1e15 + 500, 0, 1, 1.2)
    assert ledger.ahead == 8000


def test_a_page_that_took_long_shows_nothing_of_what_was_sent_meanwhile() -> None:
    ledger = begun()
    ledger.send(1000, 1000, 1.0)
    ledger.read(0, 0, 0, 1.6, period=1.0)  # it was asked for at 1.1, when the request was on its way
    assert ledger.ahead == 1000


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "read", "withdraw"]), st.integers(0, 5000), st.integers(0, 5)),
        max_size=60,
    )
)
def test_it_is_never_negative_and_ends_with_what_is_there(steps: list[tuple[str, int, int]]) -> None:
    ledger, sent, computed, now = begun(), [], 0.0, 0.0
    for what, tokens, there in steps:
        now += 0.05
        if what == "send":
            sent.append(ledger.send(max(1, tokens), max(1, tokens // 2), now))
        elif what == "withdraw" and sent:
            ledger.withdraw(sent[tokens % len(sent)])
        else:
            computed += tokens
            ledger.read(computed, 0, there, now)
        assert ledger.ahead == pytest.approx(sum(one.missing for one in ledger._sent), abs=1e-6)
        assert ledger.ahead >= 0
    ledger.read(computed, 0, 0, now + 10)
    assert ledger.ahead == 0


@pytest.mark.parametrize("counts_ends", [True, False])
def test_a_counter_of_ended_answers_is_found_by_answers_that_are_not_streamed(counts_ends: bool) -> None:
    """Each prompt is computed at once and answered for two seconds: then only what waits is ahead."""
    pool = CountedEnds()
    ledger, other = begun_of(pool), begun_of(pool)
    now, computed, running = 1.0, 0.0, list[SentPrompt]()
    for step in range(200):
        now += 0.1
        if step % 7 == 0:
            running.append(ledger.send(1000, 1000, now - 0.05))
            computed += 0.0 if counts_ends else 1000.0
        if step % 7 == 4 and len(running) > 2:
            computed += 1000.0 if counts_ends else 0.0
            ledger.end(running.pop(0))
        ledger.read(computed, 0, len(running), now)
        other.read(0.0, 0, 0, now)
    assert ledger.counts == ("ended answers" if counts_ends else "not known yet")
    assert ledger.ahead == 0
    for _ in range(3):
        ledger.send(1000, 1000, now)
    ledger.read(computed, 2, len(running) + 1, now + 1)
    assert ledger.ahead == (2000 if counts_ends else 3000)
    other.read(500.0, 0, 0, now)
    assert other.ends.found is counts_ends, "it says nothing of itself yet"


def test_a_token_too_many_in_a_prompt_keeps_none_ahead() -> None:
    """Whose tokens are estimated by its bytes; long prompts hide that from the ratio of all that was sent."""
    ledger = begun()
    now, computed = 0.0, 0.0
    for step in range(200):
        now += 1.0
        counted = 30_000.0 if step % 20 == 0 else 50.0
        ledger.send(counted + 0.75, counted, now)
        computed += counted
        ledger.read(computed, 0, MANY, now + 0.1)
        assert ledger.ahead == 0


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
