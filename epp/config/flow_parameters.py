"""The parameters of the policies of flow control, under the Go picker's names."""

from typing import Literal

from pydantic import Field, model_validator

from epp.config.document import Section
from epp.flow_control.priority_holdback import PriorityDomain, PriorityHoldback
from epp.flow_control.usage_limit_policy import StaticUsageLimit


class StaticUsageLimitParameters(Section):
    """`threshold`: the share of the pool that may be in use."""

    threshold: float = Field(default=1.0, gt=0.0, le=1.0)

    def policy(self) -> StaticUsageLimit:
        return StaticUsageLimit(self.threshold)


class PriorityHoldbackParameters(Section):
    """`min_ceiling`: of the lowest priority; `max_ceiling`: of the highest. `domain`: what places the others between them."""

    shape: Literal["linear"] = "linear"
    domain: Literal["rank", "value"] = "rank"
    min_ceiling: float = Field(ge=0.0, lt=1.0)
    max_ceiling: float = Field(default=1.0, gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _check_order(self) -> "PriorityHoldbackParameters":
        if self.min_ceiling >= self.max_ceiling:
            raise ValueError("minCeiling must be less than maxCeiling")
        return self

    def policy(self) -> PriorityHoldback:
        return PriorityHoldback(self.min_ceiling, self.max_ceiling, PriorityDomain(self.domain))
