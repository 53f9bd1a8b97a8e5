"""What became of the requests in flight that were taken back from their workers. Pure."""

from collections.abc import Sequence
from typing import Final

from adsum.histogram import Histogram

BUCKETS: Final[Sequence[float]] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Revocations:
    """`issued`: by the priority that needed room. `confirmed`: their streams ended, `timed_out`: nobody said so in time.

    `target`: what the last decision wanted to free, as a part of the saturation. Priorities are the operator's, so their number
    is bounded.
    """

    __slots__ = ("confirmed", "durations", "issued", "target", "timed_out")

    def __init__(self) -> None:
        self.issued: dict[int, int] = {}
        self.confirmed = 0
        self.timed_out = 0
        self.durations = Histogram(BUCKETS)
        self.target = 0.0

    def issue(self, priority: int) -> None:
        self.issued[priority] = self.issued.get(priority, 0) + 1

    def confirm(self, seconds: float) -> None:
        self.confirmed += 1
        self.durations.observe(seconds)
