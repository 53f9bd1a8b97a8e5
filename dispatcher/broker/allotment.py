"""What others leave of a target to us, out of many looks at it (pure).

What a look shows of ours is as of some instant up to a lag before it, so one look does not tell how much of its load is
ours. Where as many of ours run for a lag, all of them show: the rest is the others'. Other looks make the rest seem
smaller than it is, never larger. So of a stretch of looks the one that leaves us the least is believed.
"""

from collections import deque
from fractions import Fraction
from typing import TypeVar

from dispatcher.broker.budget import ZERO

Number = TypeVar("Number", int, Fraction)


class AllotmentEstimator:
    """Times in ms, of one clock. `lag_ms`: until what began or ended shows; `interval_ms`: between two looks."""

    def __init__(self, lag_ms: int, interval_ms: int) -> None:
        self._lag_ms = lag_ms
        self._interval_ms = interval_ms
        self._since_ms = 0
        self._in_flight: deque[tuple[int, int]] = deque()
        self._left: deque[tuple[int, Fraction]] = deque()

    def update(self, at_ms: int, headroom: Fraction, in_flight: int, *, age_ms: int = 0) -> Fraction:
        """At `at_ms`, with `in_flight` of ours, a sample of that age left room for `headroom` more: what we may have in all.

        The stretch is longer than a wave of ours can stay unseen, so that a look from before it is among them. Nothing is
        told before there were looks for as long: other replicas may have sent a wave just before the first.
        """
        late_ms = self._lag_ms + age_ms
        stretch_ms = late_ms * 3 // 2 + 2 * self._interval_ms
        if not self._left or at_ms - self._left[-1][0] > stretch_ms:
            self._begin(at_ms)
        _push(self._in_flight, at_ms, in_flight, late_ms)
        most = max(units for _, units in self._in_flight)
        _push(self._left, at_ms, headroom + most, stretch_ms)
        if at_ms - self._since_ms < stretch_ms:
            return ZERO
        return min(headroom + in_flight, *(left for _, left in self._left))

    def _begin(self, at_ms: int) -> None:
        self._since_ms = at_ms
        self._in_flight.clear()
        self._left.clear()


def _push(looks: deque[tuple[int, Number]], at_ms: int, number: Number, kept_ms: int) -> None:
    """Append it; what is younger than `kept_ms` is kept, and the one before it: looks can be far apart."""
    looks.append((at_ms, number))
    while len(looks) > 1 and looks[1][0] <= at_ms - kept_ms:
        looks.popleft()
