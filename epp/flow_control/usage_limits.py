"""How full the pool may be for requests of each priority. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol

from pydantic import Field, model_validator

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, without_parameters
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


@dataclass(frozen=True, slots=True)
class StaticUsageLimit:
    """The Go picker's static-usage-limit-policy: the same ceiling for all priorities."""

    threshold: float = 1.0
    per_request = False

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.threshold] * len(priorities)


class StaticUsageLimitParameters(Section):
    threshold: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of the pool that may be in use."""


STATIC_USAGE_LIMIT_POLICY: Final = PluginDeclaration(
    type="static-usage-limit-policy",
    role=Role.USAGE_LIMIT,
    parameters=StaticUsageLimitParameters,
    build=lambda given, context: StaticUsageLimit(given.threshold),
    is_default=True,
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


class PriorityDomain(StrEnum):
    """The rule that places a priority between the lowest and the highest ceiling: its rank among them, or its number."""

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


class PriorityHoldbackParameters(Section):
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
    def _check_order(self) -> "PriorityHoldbackParameters":
        if self.min_ceiling >= self.max_ceiling:
            raise ValueError("minCeiling must be less than maxCeiling")
        return self


def _build(given: PriorityHoldbackParameters, context: PluginContext) -> PriorityHoldback:
    return PriorityHoldback(given.min_ceiling, given.max_ceiling, PriorityDomain(given.domain))


PRIORITY_HOLDBACK_POLICY: Final = PluginDeclaration(
    type="priority-holdback-policy",
    role=Role.USAGE_LIMIT,
    parameters=PriorityHoldbackParameters,
    build=_build,
)
