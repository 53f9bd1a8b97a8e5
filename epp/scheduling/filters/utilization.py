"""Keeps the endpoints whose load is below limits.

Parameters: llm-d-router, plugins/scheduling/filter/utilization.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from pydantic import Field, model_validator

from epp.endpoints.endpoint import EndpointPool, Floats, Mask
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest

ACTIVE_REQUESTS: Final = "active-requests"
KV_CACHE: Final = "kv-cache-utilization"
LOADS: Final[Mapping[str, Callable[[EndpointPool], Floats]]] = {
    ACTIVE_REQUESTS: lambda pool: pool.inflight,
    "running-requests": lambda pool: pool.running,
    "waiting-queue": lambda pool: pool.waiting,
    KV_CACHE: lambda pool: pool.kv_usage,
}
"""The numbers that conditions name. Only the first is the picker's own."""


@dataclass(frozen=True, slots=True)
class UtilizationFilter:
    """Keeps the endpoints for which none of `limits`, (number, most), is exceeded.

    An endpoint whose page was not read, or is not believed, stays only if none with known numbers fits: unknown is not
    idle. `fallback`: if none is left, all stay.
    """

    limits: Sequence[tuple[str, float]]
    fallback: bool = False

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        fits: Mask = np.ones(len(pool), dtype=np.bool_)
        known = np.isfinite(pool.age) | self._reads_no_page()
        for name, most in self.limits:
            within = LOADS[name](pool) <= most
            fits &= within if name == ACTIVE_REQUESTS else within | ~known
        if (fits & known).any():
            return fits & known
        return np.ones(len(pool), dtype=np.bool_) if self.fallback and not fits.any() else fits

    def _reads_no_page(self) -> bool:
        return all(name == ACTIVE_REQUESTS for name, _ in self.limits)


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


def _build(given: UtilizationFilterParameters, context: PluginContext) -> UtilizationFilter:
    limits = [(condition.metric, condition.max_value) for condition in given.conditions]
    return UtilizationFilter(limits, given.fallback_on_empty)


UTILIZATION_FILTER: Final = PluginDeclaration(
    type="utilization-filter", role=Role.FILTER, parameters=UtilizationFilterParameters, build=_build
)
