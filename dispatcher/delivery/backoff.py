"""Computes the delay before the next attempt (pure): exponential backoff with jitter, and Retry-After.

The formulas are those of the worker of llm-d's Go processor, so that both spread their retries alike. Times are in
seconds. `remaining` is the time to the deadline in whole seconds, rounded down, as there.
"""

import email.utils
import random

MAX_BACKOFF = 60.0
"""Seconds of one backoff, at most."""
BASE_BACKOFF = 2.0
"""Seconds; doubles with every attempt."""
_MAX_EXPONENT = 30
"""2^30 times the base is past any deadline; a larger exponent would overflow."""


def exponential_backoff(attempt: int, remaining: int, rng: random.Random) -> float:
    """Uniform in [T/2, T), T = min(60, remaining, 2 * 2^attempt); 0 where nothing remains."""
    if remaining <= 0:
        return 0.0
    # "Equal jitter": half is fixed, so that a target gets a pause; half is random, so that requests which failed together
    # do not return together (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    longest = min(MAX_BACKOFF, float(remaining), BASE_BACKOFF * 2.0 ** min(attempt, _MAX_EXPONENT))
    return longest / 2 + rng.random() * (longest / 2)


def retry_delay(attempt: int, remaining: int, retry_after: float | None, rng: random.Random) -> float | None:
    """The delay before attempt number `attempt` (the first retry is 1); None when the deadline leaves no time for it.

    `retry_after` comes from the server. If it is longer than the backoff, it replaces it: at most half of the remaining
    time, so that one wrong estimate cannot use up the deadline, plus up to a quarter of jitter.
    """
    if remaining <= 0:
        return None
    delay = exponential_backoff(attempt, remaining, rng)
    if retry_after is not None and retry_after > delay:
        delay = max(delay, min(retry_after, remaining / 2) * (1 + rng.random() / 4))
    return delay


def parse_retry_after(value: str, now: float) -> float | None:
    """Seconds from a Retry-After header, a number or a date (RFC 9110, 10.2.3): 0 for a past date, None if malformed.

    `now` is Unix time, for dates.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= 9 else None
    # OverflowError: a year beyond those that a date can have
    try:
        moment = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment - now)
