"""The arithmetic of the dispatch budget: N = max_SYS x (D - B), in exact fractions.

S: saturation. D: dispatch budget, the free share. B: baseline, the share that stays free for interactive requests. All
from 0 to 1. max_SYS: the capacity of the target, in requests, bytes or another unit. N: how many units may go now.
docs/dispatcher-gates.md explains the rule.

Fractions, not floats: in floats 10 x (1 - 0.9) is 0.9999999999999998, which rounds down to 0 requests instead of 1. Any
input that makes no sense (NaN, negative, above 1) gives a budget of 0, so a broken metric closes the gate.
"""

import re
from fractions import Fraction
from math import floor
from typing import Final

ZERO: Final = Fraction(0)
ONE: Final = Fraction(1)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?")


def parse_decimal(text: str) -> Fraction | None:
    """Decimal text as an exact number; None for NaN, infinity, other text, and numbers of more than 40 digits."""
    text = text.strip()
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def valid_share(value: Fraction | None) -> Fraction | None:
    """The value if it is from 0 to 1, else None."""
    return value if value is not None and 0 <= value <= 1 else None


def from_saturation(saturation: Fraction | None) -> Fraction:
    """D = 1 - S; 0 if S is unknown or negative. Saturation above 1 is valid, and full."""
    return ZERO if saturation is None or saturation < 0 else max(ZERO, ONE - saturation)


def from_load(load: Fraction | None, capacity: Fraction) -> Fraction:
    """D = 1 - load / capacity; 0 if the load is unknown or negative, or there is no capacity."""
    if load is None or load < 0 or capacity <= 0:
        return ZERO
    return max(ZERO, ONE - load / capacity)


def spare(budget: Fraction | None, baseline: Fraction) -> Fraction:
    """max(0, D - B): 0, closed, exactly if D <= B. 0 if D is not from 0 to 1."""
    known = valid_share(budget)
    return ZERO if known is None else max(ZERO, known - baseline)


def system_capacity(ready_model_servers: Fraction | None, per_server: Fraction) -> Fraction:
    """max_SYS; 0 if the number of ready servers is unknown or negative."""
    return ZERO if ready_model_servers is None else max(ZERO, ready_model_servers * per_server)


def closing_point(capacity: Fraction, baseline: Fraction) -> Fraction:
    """The load at which the gate closes: max_SYS x (1 - B)."""
    return capacity * (ONE - baseline)


def within_allotment(allotment: Fraction, in_flight: int, units: int) -> bool:
    """Whether one more request of `units` keeps everything in flight within the allotment."""
    return in_flight + units <= floor(allotment)


def admits(headroom: Fraction, unseen: int, units: int, *, idle: bool) -> bool:
    """Whether one more request of `units` may go.

    `headroom`: N at the time of the reading. `unseen`: our units sent since and still running, which the reading does
    not include. `idle`: nothing of ours is in flight. Then one request passes if headroom > 0, however large it is:
    else a request larger than the headroom would wait for ever, and a headroom below 1 would stop everything.
    """
    if unseen + units <= floor(headroom):
        return True
    return idle and headroom > 0
