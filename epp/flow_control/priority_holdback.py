"""The usage limit that lets lower priorities go only while the pool has more room. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field, model_validator

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section


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
