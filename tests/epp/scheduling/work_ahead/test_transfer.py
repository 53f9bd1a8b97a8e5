"""What it takes to bring a KV cache to another worker is learnt from headers and first bytes."""

import random

import pytest

from epp.scheduling.work_ahead.transfer import (
    TRANSFER_SECONDS,
    TRANSFER_TOKEN_SECONDS,
    AwaitedTransfer,
    TransferTimes,
)
from tests.epp.scheduling.test_roles import NOW, ask, director_of, store_of


def told(seconds: float, token_seconds: float, waits: float = 0.0, answers: int = 64) -> TransferTimes:
    """Of prompts of 500 to 9,000 tokens; one in four answers waits for something else besides."""
    times, rng = TransferTimes(), random.Random(1)
    for number in range(answers):
        tokens = rng.uniform(500, 9000)
        times.observe(tokens, seconds + token_seconds * tokens + (waits if number % 4 == 0 else 0.0))
    return times


@pytest.mark.parametrize(("seconds", "token_seconds"), [(0.02, 0.00001), (0.1, 0.0001), (0.3, 0.0004)])
@pytest.mark.parametrize("waits", [0.0, 0.4])
def test_both_parts_are_learnt_and_who_waits_for_room_says_little(
    seconds: float, token_seconds: float, waits: float
) -> None:
    times = told(seconds, token_seconds, waits)
    for tokens in (1000, 8000):
        learnt, true = times.seconds + times.token_seconds * tokens, seconds + token_seconds * tokens
        assert learnt == pytest.approx(true, rel=0.25, abs=0.1 * waits)


def test_prompts_that_are_alike_say_how_long_and_not_what_a_token_takes() -> None:
    times = TransferTimes()
    for _ in range(16):
        times.observe(2000, 0.5)
    assert times.token_seconds == TRANSFER_TOKEN_SECONDS
    assert times.seconds + 2000 * times.token_seconds == pytest.approx(0.5)


def test_headers_that_come_with_the_first_byte_say_nothing() -> None:
    times = told(0.001, 0.0)
    AwaitedTransfer(times, 2000.0).came(NOW, NOW, -1.0)
    assert times.learnt() == {
        "answers": 0, "seconds": TRANSFER_SECONDS, "token_seconds": TRANSFER_TOKEN_SECONDS
    }  # fmt: skip


def test_a_cost_counts_what_the_average_worker_computes_meanwhile() -> None:
    times = told(0.1, 0.0001)
    assert times.in_tokens(5000) == pytest.approx((500, 0.5), rel=0.25)
    assert TransferTimes().in_tokens(0) == pytest.approx((400, 0.1))


def test_picks_on_two_workers_teach_it() -> None:
    director = director_of(store_of("decode", "prefill"))
    for number in range(16):
        pick = ask(director, tokens=4000 + 100 * number, text=chr(97 + number))
        assert pick.helpers
        director.responded(pick, 200, NOW)
        director.first_byte(pick, NOW + 2.0, NOW + 2.0)
        director.release(pick, NOW + 3.0)
    # 20,000 tokens at the assumed speed, and 6,000 x (1 + 0.3 x 16) + 150 x 16 beside the sixteen that no page has counted yet
    assert ask(director, text="z").stages == (
        "prefill-decode: the prompt costs 57,200 tokens with prefill-2, 70,816 without"
    )
