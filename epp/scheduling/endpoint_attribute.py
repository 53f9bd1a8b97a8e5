"""Filters and scores endpoints by a number of their metrics pages that the configuration names.

Parameters and values: llm-d-router, plugins/scheduling/filter/endpointattribute and scorer/endpointattribute.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from epp.endpoints.endpoint import EndpointPool, Floats, Mask
from epp.endpoints.worker_metrics import WorkerMetric
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class ThresholdParameters(Section):
    operator: Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]
    """Compares the number of an endpoint with `value`."""
    value: float = Field(default=0.0, allow_inf_nan=False)
    """Endpoints stay for which that holds."""


class FilteringAlgorithmParameters(Section):
    type: Literal["threshold"]
    """The only one."""
    threshold: ThresholdParameters
    """It says which endpoints stay."""


class AttributeFilterParameters(Section):
    attribute: str = Field(min_length=1)
    """The `attributeKey` of `customMetrics`."""
    producer: str | None = None
    """The `name` of the extractor; without it `core-metrics-extractor`."""
    on_missing: Literal["", "Pass", "Fail"] = "Pass"
    """It says whether an endpoint without the number stays."""
    fallback_on_empty: bool = False
    """Keep all endpoints if none would stay."""
    algorithm: FilteringAlgorithmParameters
    """It says which endpoints stay."""


@dataclass(frozen=True, slots=True)
class EndpointAttributeFilter:
    """A number that is not known, or on a page that is not believed, is a missing one."""

    attribute: WorkerMetric
    given: AttributeFilterParameters

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        values = pool.metric(self.attribute)
        known = ~np.isnan(values) & np.isfinite(pool.age)
        threshold = self.given.algorithm.threshold
        fits = COMPARISONS[threshold.operator](values, threshold.value)
        kept: Mask = np.where(known, fits, self.given.on_missing != "Fail")
        return np.ones(len(pool), dtype=np.bool_) if self.given.fallback_on_empty and not kept.any() else kept


def _filter(given: AttributeFilterParameters, context: PluginContext) -> EndpointAttributeFilter:
    return EndpointAttributeFilter(context.metric(given.attribute, given.producer, field="attribute"), given)


ENDPOINT_ATTRIBUTE_FILTER: Final = PluginDeclaration(
    type="endpoint-attribute-filter", role=Role.FILTER, parameters=AttributeFilterParameters, build=_filter
)


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
    """It says which end scores 1."""
    normalization: NormalizationParameters = NormalizationParameters()
    """Between which numbers."""


class AttributeScorerParameters(Section):
    attribute_key: str = Field(min_length=1)
    """The `attributeKey` of `customMetrics`."""
    producer: str | None = None
    """The `name` of the extractor; without it `core-metrics-extractor`."""
    algorithm: ScoringAlgorithmParameters
    """It says how the number becomes a score. An endpoint without it scores 0."""


@dataclass(frozen=True, slots=True)
class EndpointAttributeScorer:
    """Linear from 0 to 1; if all candidates have the same number and there is no fixed range, those that have it get 1."""

    attribute: WorkerMetric
    algorithm: ScoringAlgorithmParameters

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        values = pool.metric(self.attribute)
        known = ~np.isnan(values)
        least, most = self._range_of(values[known])
        if least >= most:
            return np.where(known, 1.0, 0.0)
        share = np.clip((values - least) / (most - least), 0.0, 1.0)
        return np.where(known, 1.0 - share if self.algorithm.type == "linear_lower_is_better" else share, 0.0)

    def _range_of(self, values: Floats) -> tuple[float, float]:
        if (fixed := self.algorithm.normalization.fixed_range) is not None:
            return fixed.min, fixed.max
        return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _scorer(given: AttributeScorerParameters, context: PluginContext) -> EndpointAttributeScorer:
    attribute = context.metric(given.attribute_key, given.producer, field="attributeKey")
    return EndpointAttributeScorer(attribute, given.algorithm)


ENDPOINT_ATTRIBUTE_SCORER: Final = PluginDeclaration(
    type="endpoint-attribute-scorer", role=Role.SCORER, parameters=AttributeScorerParameters, build=_scorer
)
