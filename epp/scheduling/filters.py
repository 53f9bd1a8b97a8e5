"""Filters by role, by label and by load. Where no endpoint has the role, the profile answers 503.

Conditions on the load: llm-d-router, plugins/scheduling/filter/utilization.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from pydantic import Field, model_validator

from epp.endpoints.endpoint import (
    DECODE_ROLES,
    ENCODE_ROLES,
    PREFILL_ROLES,
    ROLE_LABEL,
    EndpointPool,
    Floats,
    Mask,
)
from epp.plugins.declaration import PluginDeclaration, Role, only_parameters
from epp.plugins.section import Section
from epp.request.inference_request import InferenceRequest


@dataclass(frozen=True, slots=True)
class LabelFilter:
    """Keeps endpoints whose label is one of `values`; `unlabelled`: whether one without the label stays."""

    label: str
    values: frozenset[str]
    unlabelled: bool = False

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        found = (endpoint.labels.get(self.label) for endpoint in pool.endpoints)
        kept = [self.unlabelled if value is None else value in self.values for value in found]
        return np.array(kept, dtype=np.bool_)


class Requirement(Section):
    """One line of matchExpressions."""

    key: str
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """It says how the label is compared, as in Kubernetes."""
    values: list[str] = Field(default_factory=list)
    """The values for `In` and `NotIn`."""

    @model_validator(mode="after")
    def _check_values(self) -> "Requirement":
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"{self.operator} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"{self.operator} takes no values")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy it. As in Kubernetes, an absent label satisfies NotIn."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class LabelSelectorFilter(Section):
    """Keeps the endpoints that match a Kubernetes label selector; an empty one matches all."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels that an endpoint has to have, with their values."""
    match_expressions: list[Requirement] = Field(default_factory=list)
    """Further conditions; all have to hold."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        return np.array([self._selects(endpoint.labels) for endpoint in pool.endpoints], dtype=np.bool_)

    def _selects(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


class ByLabelParameters(Section):
    """The older type of label-selector-filter."""

    label: str = Field(min_length=1)
    """The label of the endpoints."""
    valid_values: list[str] = Field(default_factory=list)
    """An endpoint is kept if the label has one of them."""
    allows_no_label: bool = False
    """Keep endpoints without the label."""

    @model_validator(mode="after")
    def _check_values(self) -> "ByLabelParameters":
        if not (self.valid_values or self.allows_no_label):
            raise ValueError(
                "no endpoint can have one of no values; give validValues, or allowsNoLabel: true"
            )
        return self


def _by_role(type: str, roles: frozenset[str], *, unlabelled: bool = False) -> PluginDeclaration:
    """Keeps endpoints whose role label (llm-d) is one of `roles`."""
    return PluginDeclaration(
        type=type, role=Role.FILTER, build=lambda given, context: LabelFilter(ROLE_LABEL, roles, unlabelled)
    )


DECODE_FILTER: Final = _by_role("decode-filter", DECODE_ROLES, unlabelled=True)
PREFILL_FILTER: Final = _by_role("prefill-filter", PREFILL_ROLES)
ENCODE_FILTER: Final = _by_role("encode-filter", ENCODE_ROLES)
LABEL_SELECTOR_FILTER: Final = only_parameters("label-selector-filter", Role.FILTER, LabelSelectorFilter)
BY_LABEL_SELECTOR: Final = replace(LABEL_SELECTOR_FILTER, type="by-label-selector")
BY_LABEL: Final = PluginDeclaration(
    type="by-label",
    role=Role.FILTER,
    parameters=ByLabelParameters,
    build=lambda given, context: LabelFilter(
        given.label, frozenset(given.valid_values), given.allows_no_label
    ),
)


ACTIVE_REQUESTS: Final = "active-requests"
KV_CACHE: Final = "kv-cache-utilization"
LOADS: Final[Mapping[str, Callable[[EndpointPool], Floats]]] = {
    ACTIVE_REQUESTS: lambda pool: pool.inflight,
    "running-requests": lambda pool: pool.running,
    "waiting-queue": lambda pool: pool.waiting,
    KV_CACHE: lambda pool: pool.kv_usage,
}
"""The numbers that conditions name. Only the first is the picker's own."""


class ConditionParameters(Section):
    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    """The filter looks at this number of each endpoint."""
    max_value: float = Field(ge=0.0, allow_inf_nan=False)
    """The most that an endpoint may have."""

    @model_validator(mode="after")
    def _check_share(self) -> "ConditionParameters":
        if self.metric == KV_CACHE and self.max_value > 1.0:
            raise ValueError(f"the maxValue of {KV_CACHE} is a share of the cache; expected 0 to 1")
        return self


class UtilizationFilter(Section):
    """An endpoint whose page was not read, or is not believed, stays only if none with known numbers fits: unknown is not idle."""

    conditions: list[ConditionParameters] = Field(min_length=1)
    """All have to hold."""
    fallback_on_empty: bool = False
    """Keep all endpoints if none would stay."""
    in_flight_load_producer_name: str | None = None
    """No effect: requests in flight are always counted."""

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        fits: Mask = np.ones(len(pool), dtype=np.bool_)
        known = np.isfinite(pool.age) | self._reads_no_page()
        for one in self.conditions:
            within = LOADS[one.metric](pool) <= one.max_value
            fits &= within if one.metric == ACTIVE_REQUESTS else within | ~known
        if (fits & known).any():
            return fits & known
        return np.ones(len(pool), dtype=np.bool_) if self.fallback_on_empty and not fits.any() else fits

    def _reads_no_page(self) -> bool:
        return all(one.metric == ACTIVE_REQUESTS for one in self.conditions)


UTILIZATION_FILTER: Final = only_parameters("utilization-filter", Role.FILTER, UtilizationFilter)
