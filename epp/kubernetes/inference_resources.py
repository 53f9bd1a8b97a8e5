"""Reads InferenceObjectives and InferenceModelRewrites of one InferencePool (pure).

Fields: the types of llm-d-router (apix/v1alpha2). `llm-d.ai/v1` names its pools by `poolRefs` or `poolSelector`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from discovery.kubernetes.inference_pool import POOL_GROUP
from epp.request.model_rewrite import RewriteRule, RewriteTarget

Object = Mapping[str, Any]
Spec = TypeVar("Spec", bound="_Spec")
_Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""As the CRDs have it; a number without a bound would be too large for arithmetic."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """The InferencePool of a picker. `labels`: its own, for resources that select their pools."""

    namespace: str
    name: str
    group: str = POOL_GROUP
    labels: Mapping[str, str] = field(default_factory=dict)


class _PoolRef(Struct):
    name: str = ""
    group: str = POOL_GROUP


class _PoolSelector(Struct, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: list[Any] = []


class _Spec(Struct, rename="camel"):
    pool_ref: _PoolRef | None = None
    pool_refs: list[_PoolRef] | None = None
    pool_selector: _PoolSelector | None = None


class _ObjectiveSpec(_Spec):
    priority: _Int32 | None = None


class _ModelMatch(Struct):
    value: str = ""


class _Match(Struct):
    model: _ModelMatch | None = None


class _TargetModel(Struct, rename="camel"):
    model_rewrite: str
    weight: _Int32 | None = None


class _Rule(Struct):
    matches: list[_Match] | None = None
    targets: list[_TargetModel] | None = None


class _RewriteSpec(_Spec):
    rules: list[_Rule] | None = None


@dataclass(frozen=True, slots=True)
class Priorities:
    """The priority of each objective by its name. `problems`: why resources are left out, by name."""

    by_objective: Mapping[str, int]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rewrites:
    """The rules of all resources; `names`: of these. `problems`: why others are left out, by name."""

    rules: Sequence[RewriteRule]
    names: frozenset[str]
    problems: Mapping[str, str]


def read_priorities(objectives: Iterable[Object], pool: PoolIdentity) -> Priorities:
    """Of the InferenceObjectives for `pool`; one without a priority has 0, as in the Go picker."""
    found: dict[str, int] = {}
    problems: dict[str, str] = {}
    for name, _, spec in _for_pool(objectives, _ObjectiveSpec, pool, problems):
        found[name] = spec.priority or 0
    return Priorities(found, problems)


def read_rewrites(rewrites: Iterable[Object], pool: PoolIdentity) -> Rewrites:
    """Of the InferenceModelRewrites for `pool`."""
    found: list[RewriteRule] = []
    problems: dict[str, str] = {}
    names: set[str] = set()
    for name, created, spec in _for_pool(rewrites, _RewriteSpec, pool, problems):
        names.add(name)
        for rule in spec.rules or ():
            models = tuple(match.model.value for match in rule.matches or () if match.model is not None)
            if rule.matches and not models:
                continue  # a match without a model matches nothing; without a match it would be generic
            targets = (
                RewriteTarget(target.model_rewrite, target.weight or 0) for target in rule.targets or ()
            )
            found.append(RewriteRule(name, created, models, tuple(targets)))
    return Rewrites(found, frozenset(names), problems)


def _for_pool(
    objects: Iterable[Object], kind: type[Spec], pool: PoolIdentity, problems: dict[str, str]
) -> Iterable[tuple[str, str, Spec]]:
    """Name, time of creation and spec of each object that is for `pool` and not being deleted."""
    for obj in objects:
        metadata = obj.get("metadata") or {}
        name = str(metadata.get("name", ""))
        try:
            spec = msgspec.convert(obj.get("spec") or {}, kind)
        except msgspec.ValidationError as error:
            problems[name] = f"{error}; expected the fields of its CRD"
            continue
        if not metadata.get("deletionTimestamp") and _is_for(spec, pool, name, problems):
            yield name, str(metadata.get("creationTimestamp", "")), spec


def _is_for(spec: _Spec, pool: PoolIdentity, name: str, problems: dict[str, str]) -> bool:
    references = [*(spec.pool_refs or ()), *([spec.pool_ref] if spec.pool_ref else ())]
    if any((ref.name, ref.group) == (pool.name, pool.group) for ref in references):
        return True
    selector = spec.pool_selector
    if selector is None:
        return False
    if selector.match_expressions:
        problems[name] = "poolSelector.matchExpressions is not supported; use matchLabels or poolRefs"
        return False
    wanted = selector.match_labels
    return bool(wanted) and all(pool.labels.get(label) == value for label, value in wanted.items())
