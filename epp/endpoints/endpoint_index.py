"""Finds the endpoints that serve a model, computed once for each set of endpoints. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from epp.endpoints.endpoint import Endpoint, Mask


@dataclass(frozen=True, slots=True)
class EndpointIndex:
    """Lookups that depend on the endpoints alone: the endpoints that serve a model.

    `undeclared`: the endpoints that declare no model. `serving`: by model; None: all endpoints.
    """

    endpoints: tuple[Endpoint, ...]
    undeclared: Mask
    serving: Mapping[str, Mask | None]
    all_reachable: bool

    @classmethod
    def of(cls, endpoints: tuple[Endpoint, ...]) -> "EndpointIndex":
        undeclared = np.array([not endpoint.models for endpoint in endpoints], dtype=np.bool_)
        serving: dict[str, Mask] = {}
        for row, endpoint in enumerate(endpoints):
            for model in endpoint.models:
                serving.setdefault(model, undeclared.copy())[row] = True
        narrowed = {model: None if mask.all() else mask for model, mask in serving.items()}
        return cls(endpoints, undeclared, narrowed, all(endpoint.reachable for endpoint in endpoints))
