"""The parameters of the policies of flow control, under the Go picker's names."""

import time
from typing import Literal

from pydantic import Field, model_validator

from epp.config.document import Section
from epp.flow_control.priority_holdback import PriorityDomain, PriorityHoldback
from epp.flow_control.program_aware import ProgramAware, ProgramAwareSettings
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


class ProgramAwareParameters(Section):
    """`strategy`: the only one. `eviction_sweep_seconds` has no effect: a program is forgotten when another one is served."""

    strategy: Literal["", "las"] = "las"
    las_weight_service: float = Field(default=0.8, ge=0.0, allow_inf_nan=False)
    las_weight_head_wait: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    las_half_life_seconds: float = Field(default=60.0, ge=0.0, allow_inf_nan=False)
    eviction_ttl_seconds: float = Field(default=3600.0, ge=0.0, allow_inf_nan=False)
    eviction_sweep_seconds: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)

    def policy(self) -> ProgramAware:
        settings = ProgramAwareSettings(
            service_weight=self.las_weight_service,
            wait_weight=self.las_weight_head_wait,
            half_life=self.las_half_life_seconds,
            forget_after=self.eviction_ttl_seconds,
        )
        return ProgramAware(settings, time.monotonic)
