"""Estimates how much of a target other clients leave to us, from many samples of its load (pure).

A sample shows the target as it was up to a lag ago, so one sample does not tell how much of its load is ours. If the
same number of our requests ran for a whole lag, the sample shows all of them, and the rest is the others'. If not, some
of our load is missing from it. Each sample therefore adds the largest number of ours within the lag to the headroom:
the result can be too large, never too small. The least result of a stretch of samples is used.
"""

from collections import deque
from fractions import Fraction
from typing import TypeVar

from dispatcher.broker.capacity.budget import ZERO

Number = TypeVar("Number", int, Fraction)


class AllotmentEstimator:
    """Times in ms, of one clock. `lag_ms`: until a start or an end shows in the metric. `interval_ms`: between samples."""

    def __init__(self, lag_ms: int, interval_ms: int) -> None:
        self._lag_ms = lag_ms
        self._interval_ms = interval_ms
        self._since_ms = 0
        self._in_flight: deque[tuple[int, int]] = deque()
        self._left: deque[tuple[int, Fraction]] = deque()

    def update(self, at_ms: int, headroom: Fraction, in_flight: int, *, age_ms: int = 0) -> Fraction:
        """Add a sample and return the allotment: what we may have in flight in all; 0 while unknown.

        `headroom`: room for further requests in a sample that was `age_ms` old at `at_ms`. `in_flight`: ours at `at_ms`.
        """
        late_ms = self._lag_ms + age_ms
        # Longer than a burst of ours can stay invisible: at least one sample is from before the burst.
        stretch_ms = late_ms * 3 // 2 + 2 * self._interval_ms
        if not self._left or at_ms - self._left[-1][0] > stretch_ms:
            self._begin(at_ms)
        _push(self._in_flight, at_ms, in_flight, late_ms)
        most = max(units for _, units in self._in_flight)
        _push(self._left, at_ms, headroom + most, stretch_ms)
        # Another replica may have sent a burst just before the first sample. It stays invisible for up to a stretch.
        if at_ms - self._since_ms < stretch_ms:
            return ZERO
        return min(headroom + in_flight, *(left for _, left in self._left))

    def _begin(self, at_ms: int) -> None:
        self._since_ms = at_ms
        self._in_flight.clear()
        self._left.clear()


def _push(samples: deque[tuple[int, Number]], at_ms: int, number: Number, kept_ms: int) -> None:
    """Append a sample; keep those younger than `kept_ms` and one older: the value that held when that time began."""
    samples.append((at_ms, number))
    while len(samples) > 1 and samples[1][0] <= at_ms - kept_ms:
        samples.popleft()
