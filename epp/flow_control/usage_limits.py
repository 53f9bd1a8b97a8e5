"""How full the pool may be for requests of each priority. Pure."""

import math
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, Protocol

from pydantic import Field, model_validator

from epp.plugins.declaration import Role, only_parameters, without_parameters
from epp.plugins.section import Section


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


class StaticUsageLimit(Section):
    """The same ceiling for all priorities."""

    per_request: ClassVar[bool] = False

    threshold: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of the pool that may be in use."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.threshold] * len(priorities)


STATIC_USAGE_LIMIT_POLICY: Final = only_parameters(
    "static-usage-limit-policy", Role.USAGE_LIMIT, StaticUsageLimit, is_default=True
)


class SoftReflectiveCeiling:
    """The Go picker's soft-reflective-ceiling-policy.

    Rank i of N priorities, highest first, has the ceiling 1 - i * saturation / (N - 1). From there on it is open in one of
    round(saturation / (1 - saturation)) calls. All closed ranks open in the same calls: a dispatch stops at the first priority
    that is closed.
    """

    per_request = True

    def __init__(self) -> None:
        self._calls = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        steps = len(priorities) - 1
        if steps < 1:
            return [1.0] * len(priorities)
        if saturation < 1.0 - saturation:  # the lowest ceiling
            return [1.0] * len(priorities)
        past = 1.0 if self._opens(saturation) else 0.0
        reached = (saturation >= 1.0 - rank * saturation / steps for rank in range(1, steps + 1))
        return [1.0, *(past if closed else 1.0 for closed in reached)]

    def _opens(self, saturation: float) -> bool:
        if saturation >= 1.0:
            return False
        period = max(1, math.floor(saturation / (1.0 - saturation + 1e-9) + 0.5))
        self._calls += 1
        return self._calls % period == 0


SOFT_REFLECTIVE_CEILING_POLICY: Final = without_parameters(
    "soft-reflective-ceiling-policy", Role.USAGE_LIMIT, SoftReflectiveCeiling
)


class PriorityHoldback(Section):
    """Evenly between both ceilings. A priority that is alone has nobody to hold back for, and gets `maxCeiling`."""

    per_request: ClassVar[bool] = False

    shape: Literal["linear"] = "linear"
    """The only one."""
    domain: Literal["rank", "value"] = "rank"
    """The ceilings of the other priorities lie evenly between the two (`rank`), or as their numbers do
    (`value`)."""
    min_ceiling: float = Field(ge=0.0, lt=1.0)
    """The share of the pool that the lowest priority may fill."""
    max_ceiling: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share that the highest may fill."""

    @model_validator(mode="after")
    def _check_order(self) -> "PriorityHoldback":
        if self.min_ceiling >= self.max_ceiling:
            raise ValueError("minCeiling must be less than maxCeiling")
        return self

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        if len(priorities) < 2:
            return [self.max_ceiling] * len(priorities)
        spread = self.max_ceiling - self.min_ceiling
        if self.domain == "rank":
            steps = len(priorities) - 1
            return [self.max_ceiling - rank * spread / steps for rank in range(len(priorities))]
        least, most = priorities[-1], priorities[0]
        if most == least:
            return [self.max_ceiling] * len(priorities)
        return [self.min_ceiling + (priority - least) / (most - least) * spread for priority in priorities]


PRIORITY_HOLDBACK_POLICY: Final = only_parameters(
    "priority-holdback-policy", Role.USAGE_LIMIT, PriorityHoldback
)
