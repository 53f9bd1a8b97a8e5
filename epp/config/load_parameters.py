"""The parameters of the plugins that look at the load and at other numbers of the workers, under the Go picker's names."""

from typing import Literal

from pydantic import Field, model_validator

from epp.config.document import Section
from epp.scheduling.filters.utilization import KV_CACHE


class ConditionParameters(Section):
    """`max_value`: the most that an endpoint may have."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: float = Field(ge=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_share(self) -> "ConditionParameters":
        if self.metric == KV_CACHE and self.max_value > 1.0:
            raise ValueError(f"the maxValue of {KV_CACHE} is a share of the cache; expected 0 to 1")
        return self


class UtilizationFilterParameters(Section):
    """`in_flight_load_producer_name` has no effect: requests in flight are always counted."""

    conditions: list[ConditionParameters] = Field(min_length=1)
    fallback_on_empty: bool = False
    in_flight_load_producer_name: str | None = None


class FixedRangeParameters(Section):
    min: float = Field(default=0.0, allow_inf_nan=False)
    max: float = Field(default=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_order(self) -> "FixedRangeParameters":
        if self.min >= self.max:
            raise ValueError("min must be less than max")
        return self


class AdaptiveRangeParameters(Section):
    """The range of the candidates' numbers; it has no parameters."""


class NormalizationParameters(Section):
    """At most one of them; none: `adaptive_range`."""

    fixed_range: FixedRangeParameters | None = None
    adaptive_range: AdaptiveRangeParameters | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "NormalizationParameters":
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("a normalization is either a fixedRange or an adaptiveRange")
        return self


class ScoringAlgorithmParameters(Section):
    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: NormalizationParameters = NormalizationParameters()


class AttributeScorerParameters(Section):
    """`producer` None: core-metrics-extractor."""

    attribute_key: str = Field(min_length=1)
    producer: str | None = None
    algorithm: ScoringAlgorithmParameters


class ThresholdParameters(Section):
    operator: Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]
    value: float = Field(default=0.0, allow_inf_nan=False)


class FilteringAlgorithmParameters(Section):
    type: Literal["threshold"]
    threshold: ThresholdParameters


class AttributeFilterParameters(Section):
    """`producer` None: core-metrics-extractor. `on_missing`: whether an endpoint without the number stays."""

    attribute: str = Field(min_length=1)
    producer: str | None = None
    on_missing: Literal["", "Pass", "Fail"] = "Pass"
    fallback_on_empty: bool = False
    algorithm: FilteringAlgorithmParameters


class ProbabilisticAdmitterParameters(Section):
    """The probability of a refusal is saturation to the `power`, times `k`."""

    queue_depth_threshold: int = Field(default=5, ge=1)
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, allow_inf_nan=False)
    power: float = Field(default=5.0, gt=0.0, allow_inf_nan=False)
    k: float = Field(default=300.0, gt=0.0, allow_inf_nan=False)


class KubernetesNotificationParameters(Section):
    """Accepted without effect: discovery follows the workers by itself."""

    group: str = ""
    version: str = Field(min_length=1)
    kind: str = Field(min_length=1)
