import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.delivery.gateway import parse_retry_after
from dispatcher.delivery.verdict import exponential_backoff, retry_delay

SEEDS = range(200)


@pytest.mark.parametrize(
    ("attempt", "remaining", "least", "most"),
    [
        (0, 300, 1, 2),
        (1, 300, 2, 4),
        (2, 300, 4, 8),
        (3, 300, 8, 16),
        (4, 300, 16, 32),
        (10, 300, 30, 60),
        (10_000, 300, 30, 60),
        (10, 3, 1.5, 3),
        (1, 1, 0.5, 1),
    ],
)
def test_16_the_backoff_table(attempt: int, remaining: int, least: float, most: float) -> None:
    delays = [exponential_backoff(attempt, remaining, random.Random(seed)) for seed in SEEDS]
    assert all(least <= delay < most for delay in delays)
    assert max(delays) - min(delays) > 0.8 * (most - least)


@pytest.mark.parametrize("remaining", [0, -1, -100])
def test_no_time_no_backoff(remaining: int) -> None:
    assert exponential_backoff(1, remaining, random.Random(1)) == 0
    assert retry_delay(1, remaining, 5.0, random.Random(1)) is None


@pytest.mark.parametrize(
    ("retry_after", "attempt", "remaining", "least", "most"),
    [
        (30, 1, 100, 30, 37.5),
        (1, 6, 300, 30, 60),
        (30, 1, 5, 2, 5),
        (300, 1, 40, 20, 25),
        (None, 1, 300, 2, 4),
        (0, 1, 300, 2, 4),
    ],
)
def test_16_the_retry_after_table(
    retry_after: float | None, attempt: int, remaining: int, least: float, most: float
) -> None:
    delays = [retry_delay(attempt, remaining, retry_after, random.Random(seed)) for seed in SEEDS]
    assert all(delay is not None and least <= delay < most for delay in delays)


@given(
    attempt=st.integers(1, 2000),
    remaining=st.integers(1, 10**6),
    retry_after=st.none() | st.floats(0, 1e9),
    seed=st.integers(),
)
def test_a_retry_comes_before_the_deadline(
    attempt: int, remaining: int, retry_after: float | None, seed: int
) -> None:
    delay = retry_delay(attempt, remaining, retry_after, random.Random(seed))
    assert delay is not None
    assert 0 < delay < remaining


@pytest.mark.parametrize("retry_after", [None, 30.0])
def test_16_a_thousand_that_were_rejected_together_spread(retry_after: float | None) -> None:
    rng = random.Random(16)
    delays = [retry_delay(1, 300, retry_after, rng) for _ in range(1000)]
    bins: dict[int, int] = {}
    for delay in delays:
        assert delay is not None
        bins[int(delay * 10)] = bins.get(int(delay * 10), 0) + 1
    # 100 ms of the shortest wait, [2, 4) s, are 5 % on average: no bin may stand out of that
    assert max(bins.values()) <= (1000 * 0.05 if retry_after else 1000 * 0.085)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        (" 7 ", 7),
        ("-5", None),
        ("abc", None),
        ("", None),
        ("1.5", None),
        ("١٢", None),
        ("9" * 5000, None),
        ("Wed, 31 Dec 1969 07:28:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:33:40 GMT", 20),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("1 Jan 99999999999 00:00:00", None),
        ("nan", None),
        ("1e300", None),
    ],
)
def test_retry_after_as_sent(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, now=2000.0) == seconds


@given(st.text(max_size=40))
def test_any_retry_after_is_read_or_ignored(value: str) -> None:
    seconds = parse_retry_after(value, now=0.0)
    assert seconds is None or seconds >= 0
