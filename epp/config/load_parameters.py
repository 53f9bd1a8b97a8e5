"""The parameters of the plugins that look at the load and at other numbers of the workers, under the Go picker's names."""

from typing import Literal

from pydantic import Field, model_validator

from epp.config.document import Section
from epp.scheduling.filters.utilization import KV_CACHE


class ConditionParameters(Section):
    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    """What is looked at."""
    max_value: float = Field(ge=0.0, allow_inf_nan=False)
    """The most that an endpoint may have."""

    @model_validator(mode="after")
    def _check_share(self) -> "ConditionParameters":
        if self.metric == KV_CACHE and self.max_value > 1.0:
            raise ValueError(f"the maxValue of {KV_CACHE} is a share of the cache; expected 0 to 1")
        return self


class UtilizationFilterParameters(Section):
    conditions: list[ConditionParameters] = Field(min_length=1)
    """All have to hold."""
    fallback_on_empty: bool = False
    """Keep all endpoints if none would stay."""
    in_flight_load_producer_name: str | None = None
    """No effect: requests in flight are always counted."""


class FixedRangeParameters(Section):
    min: float = Field(default=0.0, allow_inf_nan=False)
    """Scored as the low end."""
    max: float = Field(default=0.0, allow_inf_nan=False)
    """Scored as the high end."""

    @model_validator(mode="after")
    def _check_order(self) -> "FixedRangeParameters":
        if self.min >= self.max:
            raise ValueError("min must be less than max")
        return self


class AdaptiveRangeParameters(Section):
    """The range of the candidates' numbers; it has no parameters."""


class NormalizationParameters(Section):
    """At most one of both."""

    fixed_range: FixedRangeParameters | None = None
    """Between two given numbers."""
    adaptive_range: AdaptiveRangeParameters | None = None
    """`{}`: between the least and the most of the candidates; so too without either."""

    @model_validator(mode="after")
    def _check_one(self) -> "NormalizationParameters":
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("a normalization is either a fixedRange or an adaptiveRange")
        return self


class ScoringAlgorithmParameters(Section):
    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Which end scores 1."""
    normalization: NormalizationParameters = NormalizationParameters()
    """Between which numbers."""


class AttributeScorerParameters(Section):
    attribute_key: str = Field(min_length=1)
    """Of `customMetrics`."""
    producer: str | None = None
    """The `name` of the extractor; without it `core-metrics-extractor`."""
    algorithm: ScoringAlgorithmParameters
    """How the number becomes a score. An endpoint without it scores 0."""


class ThresholdParameters(Section):
    operator: Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]
    """Compares the number of an endpoint with `value`."""
    value: float = Field(default=0.0, allow_inf_nan=False)
    """Endpoints stay for which that holds."""


class FilteringAlgorithmParameters(Section):
    type: Literal["threshold"]
    """The only one."""
    threshold: ThresholdParameters
    """Which endpoints stay."""


class AttributeFilterParameters(Section):
    attribute: str = Field(min_length=1)
    """The `attributeKey` of `customMetrics`."""
    producer: str | None = None
    """The `name` of the extractor; without it `core-metrics-extractor`."""
    on_missing: Literal["", "Pass", "Fail"] = "Pass"
    """Whether an endpoint without the number stays."""
    fallback_on_empty: bool = False
    """Keep all endpoints if none would stay."""
    algorithm: FilteringAlgorithmParameters
    """Which endpoints stay."""


class ProbabilisticAdmitterParameters(Section):
    queue_depth_threshold: int = Field(default=5, ge=1)
    """The queue length that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, allow_inf_nan=False)
    """The share of the KV cache in use that counts as full."""
    power: float = Field(default=5.0, gt=0.0, allow_inf_nan=False)
    """The probability of a refusal is the saturation to this power, times `k`."""
    k: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)
    """See `power`."""


class KubernetesNotificationParameters(Section):
    """Accepted without effect: discovery follows the workers by itself."""

    group: str = ""
    """No effect."""
    version: str = Field(min_length=1)
    """No effect."""
    kind: str = Field(min_length=1)
    """No effect."""
