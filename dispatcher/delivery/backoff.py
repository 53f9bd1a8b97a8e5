"""How long to wait before the next attempt: the Go processor's rules (its worker), pure.

All times in seconds. `remaining` is the time to the deadline in whole seconds, rounded down.
"""

import email.utils
import random

MAX_BACKOFF = 60.0
"""Seconds of one backoff, at most, whatever the attempt."""
BASE_BACKOFF = 2.0
"""Seconds; doubled with every attempt."""
_MAX_EXPONENT = 30
"""2^30 steps is past any deadline; more would only overflow."""


def exponential_backoff(attempt: int, remaining: int, rng: random.Random) -> float:
    """Uniform in [T/2, T), T = min(60, remaining, 2 * 2^attempt); 0 where nothing remains."""
    if remaining <= 0:
        return 0.0
    longest = min(MAX_BACKOFF, float(remaining), BASE_BACKOFF * 2.0 ** min(attempt, _MAX_EXPONENT))
    return longest / 2 + rng.random() * (longest / 2)


def retry_delay(attempt: int, remaining: int, retry_after: float | None, rng: random.Random) -> float | None:
    """The wait before attempt number `attempt` (the first retry is 1); None: no time is left for one.

    `retry_after` is what the server asked for. Where it is longer than the backoff it is followed up to half of what
    remains, with a quarter of jitter on top, so that one wrong guess of a server cannot use up the deadline.
    """
    if remaining <= 0:
        return None
    delay = exponential_backoff(attempt, remaining, rng)
    if retry_after is not None and retry_after > delay:
        delay = max(delay, min(retry_after, remaining / 2) * (1 + rng.random() / 4))
    return delay


def parse_retry_after(value: str, now: float) -> float | None:
    """Seconds from a Retry-After header (RFC 9110 10.2.3), a count or a date; a past date is 0, garbage None.

    `now` is Unix time, for dates.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= 9 else None
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now)
