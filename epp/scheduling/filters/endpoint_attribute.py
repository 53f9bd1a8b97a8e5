"""Keeps endpoints by a number of their metrics pages that the configuration names.

Parameters and values: llm-d-router, plugins/scheduling/filter/endpointattribute.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field

from epp.endpoints.endpoint import EndpointPool, Mask
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAttributeFilter:
    """Keeps the endpoints whose number compares so with `value`.

    `keep_missing`: whether one without the number, or without a page that is believed, stays. `fallback`: if none is left,
    all stay.
    """

    attribute: WorkerMetric
    comparison: str
    value: float
    keep_missing: bool = True
    fallback: bool = False

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        values = pool.metric(self.attribute)
        known = ~np.isnan(values) & np.isfinite(pool.age)
        fits = COMPARISONS[self.comparison](values, self.value)
        kept: Mask = np.where(known, fits, self.keep_missing)
        return np.ones(len(pool), dtype=np.bool_) if self.fallback and not kept.any() else kept


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


def _build(given: AttributeFilterParameters, context: PluginContext) -> EndpointAttributeFilter:
    return EndpointAttributeFilter(
        attribute=context.metric(given.attribute, given.producer, field="attribute"),
        comparison=given.algorithm.threshold.operator,
        value=given.algorithm.threshold.value,
        keep_missing=given.on_missing != "Fail",
        fallback=given.fallback_on_empty,
    )


ENDPOINT_ATTRIBUTE_FILTER: Final = PluginDeclaration(
    type="endpoint-attribute-filter", role=Role.FILTER, parameters=AttributeFilterParameters, build=_build
)
