"""A histogram in plain numbers, which becomes a metric when somebody reads the page."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final


class Histogram:
    """How many values fell into each bucket, and their sum; `bounds` ascend and are in the unit of the values."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds: Final = bounds
        self._counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """A bucket holds what is at most its bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, int]]:
        """Each `le` and its count, as Prometheus wants it: each bucket counts those below it too."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
