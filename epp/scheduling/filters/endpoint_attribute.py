"""Keeps endpoints by a number of their metrics pages that the configuration names.

Parameters and values: llm-d-router, plugins/scheduling/filter/endpointattribute.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.endpoints.worker_metrics import WorkerMetric
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
