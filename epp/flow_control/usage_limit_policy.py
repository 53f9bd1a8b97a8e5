"""How full the pool may be for requests of each priority. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class UsageLimitPolicy(Protocol):
    """Sets a ceiling for each priority: its requests go while the saturation of the pool is below it."""

    @property
    def per_request(self) -> bool:
        """Whether the ceilings change from call to call. Then they are asked for anew for each request, and every 10 ms while
        one waits."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """The ceiling of each priority, highest first, and none above that of a higher priority; 1.0: until the pool is full.

        `priorities`: those of all bands that exist, highest first. Asked once for each look at the pool, or `per_request`.
        """


@dataclass(frozen=True, slots=True)
class StaticUsageLimit:
    """The Go picker's static-usage-limit-policy: the same ceiling for all priorities."""

    threshold: float = 1.0
    per_request = False

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.threshold] * len(priorities)
