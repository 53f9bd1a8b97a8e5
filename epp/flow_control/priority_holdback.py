"""The usage limit that lets lower priorities go only while the pool has more room. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class PriorityDomain(StrEnum):
    """What places a priority between the lowest and the highest ceiling: its rank among them, or its number."""

    RANK = "rank"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class PriorityHoldback:
    """The Go picker's priority-holdback-policy: `highest` for the highest priority, `lowest` for the lowest, evenly between.

    A priority that is alone has nobody to hold back for, and gets `highest`.
    """

    lowest: float
    highest: float = 1.0
    domain: PriorityDomain = PriorityDomain.RANK
    per_request = False

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        if len(priorities) < 2:
            return [self.highest] * len(priorities)
        spread = self.highest - self.lowest
        if self.domain is PriorityDomain.RANK:
            steps = len(priorities) - 1
            return [self.highest - rank * spread / steps for rank in range(len(priorities))]
        least, most = priorities[-1], priorities[0]
        if most == least:
            return [self.highest] * len(priorities)
        return [self.lowest + (priority - least) / (most - least) * spread for priority in priorities]
