"""Keeps requests in one zone while it has enough endpoints."""

import numpy as np
from pydantic import Field

from epp.extension import EndpointPool, Filter, InferenceRequest, Mask, PluginDeclaration, Role, Section


class ZoneParameters(Section):
    """`zone` and `minEndpoints` in the configuration."""

    zone: str = Field(min_length=1)
    min_endpoints: int = Field(default=1, ge=1)


class ZoneFilter(Filter):
    """Keeps the endpoints of the zone, or all of them where the zone has fewer than `min_endpoints`."""

    def __init__(self, zone: str, min_endpoints: int) -> None:
        self._zone = zone
        self._min_endpoints = min_endpoints

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        mask = np.array([endpoint.zone == self._zone for endpoint in pool.endpoints], dtype=np.bool_)
        return mask if mask.sum() >= self._min_endpoints else np.ones(len(pool), dtype=np.bool_)


FILTER = PluginDeclaration(
    role=Role.FILTER,
    parameters=ZoneParameters,
    build=lambda given, context: ZoneFilter(given.zone, given.min_endpoints),
)
