"""A Prometheus histogram in plain numbers: cheap to observe, rendered only when the metrics page is read."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final


class Histogram:
    """`bounds`: the buckets' upper bounds, ascending, in the unit of the values. `total`: the sum of all values."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds: Final = bounds
        self._counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value; like Prometheus' `le`, a bucket includes its bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self._counts)

    def add(self, other: "Histogram") -> None:
        """Count what another histogram with the same bounds has counted."""
        for index, count in enumerate(other._counts):
            self._counts[index] += count
        self.total += other.total

    def buckets(self) -> list[tuple[str, int]]:
        """Each `le` and its count, cumulative as in Prometheus' text format."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
