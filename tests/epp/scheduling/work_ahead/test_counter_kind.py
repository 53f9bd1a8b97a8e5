"""What a counter of prompt tokens tells of: made-up pages of one worker, each 50 ms, and first bytes."""

import random

import pytest

from epp.scheduling.work_ahead.counter_kind import CounterKind, KindSums


def watch(
    counts: str, seconds: float = 30.0, kind: CounterKind | None = None, start: float = 0.0, seed: int = 3
) -> CounterKind:
    """An answer each 0.3 s begins, and ends 2 s later. `counts`: when its prompt counts on the page, or how that is wrong."""
    kind, rng = kind or CounterKind(KindSums()), random.Random(seed)
    due: list[tuple[float, str, float]] = []
    for number in range(int(seconds / 0.3)):
        at, tokens = start + 0.3 * number + rng.uniform(0, 0.2), rng.choice((200.0, 1000.0, 4000.0))
        due += [(at, "begin", tokens), (at + rng.uniform(1.0, 3.0), "end", tokens)]
    due.sort()
    counter, now = 0.0, start
    while now < start + seconds:
        now += 0.05
        while due and due[0][0] <= now:
            at, what, tokens = due.pop(0)
            counter += tokens if what == counts or (counts == "jumps" and what == "begin") else 0.0
            if what == "begin":
                kind.first_byte(tokens, at)
        if counts == "jumps" and rng.random() < 0.02:
            counter += 1e7
        kind.read(counter, now)
    return kind


@pytest.mark.parametrize(("counts", "begins"), [("begin", True), ("end", False), ("nothing", False)])
def test_whether_prompts_count_with_their_first_tokens(counts: str, begins: bool) -> None:
    assert [watch(counts, seed=seed).begins for seed in range(10)] == [begins] * 10


def test_a_counter_that_jumps_is_worth_no_more_than_one_that_is_wrong() -> None:
    kind = watch("jumps", 10.0)
    assert watch("begin", 30.0, kind, start=10.0).begins is True


def test_another_program_is_found_out() -> None:
    kind = watch("begin")
    assert watch("end", 30.0, kind, start=30.0).begins is False


def test_the_answer_to_a_prompt_that_was_withdrawn_says_nothing() -> None:
    kind = CounterKind(KindSums())
    for number in range(200):
        kind.first_byte(0.0, 0.3 * number)
        kind.read(1e3 * number, 0.3 * number + 0.1)
    assert kind.begins is None


def test_pages_of_the_past_are_no_pages() -> None:
    kind = CounterKind(KindSums())
    for number in range(1_000):
        kind.first_byte(500.0, 10.0 + number)
        kind.read(1e6 - number, 10.0 - number)
    assert kind.begins is None
