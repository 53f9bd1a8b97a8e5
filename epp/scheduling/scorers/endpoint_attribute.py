"""Scores endpoints by a number of their metrics pages that the configuration names.

Parameters and values: llm-d-router, plugins/scheduling/scorer/endpointattribute.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Floats
from epp.endpoints.worker_metrics import WorkerMetric
from epp.request.inference_request import InferenceRequest


@dataclass(frozen=True, slots=True)
class EndpointAttributeScorer:
    """Linear from 0 to 1 over `limits`, or over the numbers of the candidates; without the number 0.

    If all candidates have the same number and there are no `limits`, those that have it get 1.
    """

    attribute: WorkerMetric
    lower_is_better: bool
    limits: tuple[float, float] | None = None

    published_only: ClassVar[bool] = True

    def score(self, request: InferenceRequest, pool: EndpointPool) -> Floats:
        values = pool.metric(self.attribute)
        known = ~np.isnan(values)
        least, most = self.limits or _range_of(values[known])
        if least >= most:
            return np.where(known, 1.0, 0.0)
        share = np.clip((values - least) / (most - least), 0.0, 1.0)
        return np.where(known, 1.0 - share if self.lower_is_better else share, 0.0)


def _range_of(values: Floats) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
