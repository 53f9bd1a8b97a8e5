"""Keeps the endpoints whose load is below limits.

Parameters: llm-d-router, plugins/scheduling/filter/utilization.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Floats, Mask
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
