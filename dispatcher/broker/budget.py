"""The arithmetic of the dispatch budget and nothing else, exact: numbers are fractions read from decimal text.

F: fullness, S: saturation, D: dispatch budget, what is left, B: baseline kept free, all from 0 to 1.
max_SYS: the capacity of everything, in requests, bytes or another unit. N: what may go now.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Final

ZERO: Final = Fraction(0)
ONE: Final = Fraction(1)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?")


def parse_decimal(text: str) -> Fraction | None:
    """The number that decimal text means; None for NaN, infinity and whatever is no number of a sensible length."""
    text = text.strip()
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


def valid_share(value: Fraction | None) -> Fraction | None:
    """The value where it is a share of something, None where it is not from 0 to 1."""
    return value if value is not None and 0 <= value <= 1 else None


def from_fullness(fullness: Fraction | None) -> Fraction:
    """D = 1 - F; 0 where F is not a share."""
    known = valid_share(fullness)
    return ZERO if known is None else ONE - known


def from_saturation(saturation: Fraction | None) -> Fraction:
    """D = 1 - S; 0 where S is unknown or negative. A detector may say more than 1: that is full, too."""
    return ZERO if saturation is None or saturation < 0 else max(ZERO, ONE - saturation)


def from_load(load: Fraction | None, capacity: Fraction) -> Fraction:
    """D of a load in units of a capacity; 0 where either makes no sense."""
    if load is None or load < 0 or capacity <= 0:
        return ZERO
    return max(ZERO, ONE - load / capacity)


def spare(budget: Fraction | None, baseline: Fraction) -> Fraction:
    """max(0, D - B): closed exactly when D <= B. 0 where D is not a share."""
    known = valid_share(budget)
    return ZERO if known is None else max(ZERO, known - baseline)


def system_capacity(ready_model_servers: Fraction | None, per_server: Fraction) -> Fraction:
    """max_SYS; 0 where the number of ready servers is unknown or negative."""
    return ZERO if ready_model_servers is None else max(ZERO, ready_model_servers * per_server)


def dispatchable(capacity: Fraction, budget: Fraction | None, baseline: Fraction) -> Fraction:
    """N = max_SYS x (D - B), a real number of units; 0 when closed."""
    return max(ZERO, capacity) * spare(budget, baseline)


def closing_point(capacity: Fraction, baseline: Fraction) -> Fraction:
    """The load at which the gate closes: max_SYS x (1 - B)."""
    return capacity * (ONE - baseline)


def within_allotment(allotment: Fraction, in_flight: int, units: int) -> bool:
    """Whether one more request of `units` stays within what others leave to us, in all."""
    return in_flight + units <= floor(allotment)


def admits(headroom: Fraction, unseen: int, units: int, *, idle: bool) -> bool:
    """Whether one more request of `units` may go.

    `headroom`: N at the reading. `unseen`: units of our own that went since, still run, and so are not in it.
    `idle`: nothing of ours is in flight; then one request passes however large it is, while anything may go at all:
    otherwise one larger than the headroom would wait for ever, and a headroom below 1 would stop everything.
    """
    if unseen + units <= floor(headroom):
        return True
    return idle and headroom > 0


def admitted_count(headroom: Fraction, sizes: Sequence[int], *, unseen: int = 0, idle: bool = False) -> int:
    """How many of the waiting requests may go, from the first on: none is split and none is overtaken."""
    admitted = 0
    for units in sizes:
        if not admits(headroom, unseen, units, idle=idle):
            break
        unseen, idle, admitted = unseen + units, False, admitted + 1
    return admitted
