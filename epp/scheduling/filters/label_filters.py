"""Filters by role and by label. If no endpoint has the role, the profile answers 503."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from epp.endpoints.endpoint import EndpointPool, Mask
from epp.request.inference_request import InferenceRequest

ROLE_LABEL = "llm-d.ai/role"
DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
PREFILL_ROLES = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})
ENCODE_ROLES = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


@dataclass(frozen=True, slots=True)
class RoleFilter:
    """Keeps endpoints whose role label (llm-d) is one of `roles`; `unlabelled`: whether one without a role stays."""

    roles: frozenset[str]
    unlabelled: bool = False

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        return LabelFilter(ROLE_LABEL, self.roles, self.unlabelled).filter(request, pool)


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


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of a Kubernetes label selector: `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

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


@dataclass(frozen=True, slots=True)
class LabelSelectorFilter:
    """Keeps endpoints that match a Kubernetes label selector; an empty one matches all."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def filter(self, request: InferenceRequest, pool: EndpointPool) -> Mask:
        return np.array([self._selects(endpoint.labels) for endpoint in pool.endpoints], dtype=np.bool_)

    def _selects(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
