"""The parameters of the policies of flow control, under the Go picker's names."""

import time
from typing import Literal

from pydantic import Field, model_validator

from epp.config.document import Section
from epp.flow_control.priority_holdback import PriorityDomain, PriorityHoldback
from epp.flow_control.program_aware import ProgramAware, ProgramAwareSettings
from epp.flow_control.usage_limit_policy import StaticUsageLimit


class StaticUsageLimitParameters(Section):
    threshold: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of the pool that may be in use."""

    def policy(self) -> StaticUsageLimit:
        return StaticUsageLimit(self.threshold)


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

    def policy(self) -> PriorityHoldback:
        return PriorityHoldback(self.min_ceiling, self.max_ceiling, PriorityDomain(self.domain))


class ProgramAwareParameters(Section):
    strategy: Literal["", "las"] = "las"
    """The only one."""
    las_weight_service: float = Field(default=0.8, ge=0.0, allow_inf_nan=False)
    """The weight of how little a program got."""
    las_weight_head_wait: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    """The weight of how long it waits."""
    las_half_life_seconds: float = Field(default=60.0, ge=0.0, allow_inf_nan=False)
    """What it got counts half after so long; 0: never."""
    eviction_ttl_seconds: float = Field(default=3600.0, ge=0.0, allow_inf_nan=False)
    """A program without a request for so long is forgotten."""
    eviction_sweep_seconds: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)
    """No effect: a program is forgotten when another one is served."""

    def policy(self) -> ProgramAware:
        settings = ProgramAwareSettings(
            service_weight=self.las_weight_service,
            wait_weight=self.las_weight_head_wait,
            half_life=self.las_half_life_seconds,
            forget_after=self.eviction_ttl_seconds,
        )
        return ProgramAware(settings, time.monotonic)
