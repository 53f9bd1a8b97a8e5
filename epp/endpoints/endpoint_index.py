"""Finds the endpoints that serve a model, computed once for each set of endpoints. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from epp.endpoints.endpoint import Endpoint, Mask
from epp.endpoints.selection import Selections


@dataclass(frozen=True, slots=True)
class EndpointIndex:
    """Lookups that depend on the endpoints alone: the endpoints that serve a model.

    `unknown`: the endpoints that neither declare nor list a model. `listing`: those that list some and declare none.
    `serving`: by model; None: all endpoints. `selections`: what was lately selected of the endpoints.
    """

    endpoints: tuple[Endpoint, ...]
    unknown: Mask
    listing: Mask
    serving: Mapping[str, Mask | None]
    all_reachable: bool
    selections: Selections[Endpoint]

    @classmethod
    def of(cls, endpoints: tuple[Endpoint, ...]) -> "EndpointIndex":
        listing = np.array([_lists(endpoint) for endpoint in endpoints], dtype=np.bool_)
        unknown = np.array(
            [not endpoint.models and not _lists(endpoint) for endpoint in endpoints], dtype=np.bool_
        )
        serving: dict[str, Mask] = {}
        for row, endpoint in enumerate(endpoints):
            for model in endpoint.models or [listed.id for listed in endpoint.listed_models]:
                serving.setdefault(model, unknown.copy())[row] = True
        narrowed = {model: None if mask.all() else mask for model, mask in serving.items()}
        all_reachable = all(endpoint.reachable for endpoint in endpoints)
        return cls(endpoints, unknown, listing, narrowed, all_reachable, Selections(endpoints))


def _lists(endpoint: Endpoint) -> bool:
    return bool(endpoint.listed_models) and not endpoint.models
