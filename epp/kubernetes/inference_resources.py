"""Reads InferenceObjectives and InferenceModelRewrites of one InferencePool (pure).

Fields: the types of llm-d-router (apix/v1alpha2). `llm-d.ai/v1` names its pools by `poolRefs` or `poolSelector`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from adsum.quoting import quoted
from discovery.kubernetes.pods.selection import POOL_GROUP
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


class ObjectiveSpec(_Spec):
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


class RewriteSpec(_Spec):
    rules: list[_Rule] | None = None


MAX_PRIORITIES: Final = 100
"""Different priorities: with flow control each is a band, which every request passes."""
MAX_PARTS: Final = 1_000
"""Rules, matches and targets of one InferenceModelRewrite."""
MAX_ALL_PARTS: Final = 10_000
"""The same of all: their index is made anew after each change."""


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


class _Parsed(NamedTuple, Generic[Spec]):
    """An object that is not being deleted. `problem`: why it is left out; then `spec` is None."""

    created: str
    name: str
    spec: Spec | None
    problem: str
    parts: int


class ParsedObjects(Generic[Spec]):
    """Parses objects; one whose version was parsed before is not parsed again."""

    def __init__(self, kind: type[Spec]) -> None:
        self._kind = kind
        self._known: dict[tuple[str, str], _Parsed[Spec]] = {}

    def parse(self, objects: Iterable[Object]) -> list[_Parsed[Spec]]:
        """The oldest first, as rules go before others."""
        known, self._known = self._known, {}
        found = []
        for obj in objects:
            metadata = obj.get("metadata") or {}
            if metadata.get("deletionTimestamp"):
                continue
            version = (str(metadata.get("uid", "")), str(metadata.get("resourceVersion", "")))
            parsed = known.get(version) or self._parse(metadata, obj.get("spec") or {})
            if all(version):
                self._known[version] = parsed
            found.append(parsed)
        return sorted(found, key=lambda one: (one.created, one.name))

    def _parse(self, metadata: Object, given: Any) -> _Parsed[Spec]:
        spec: Spec | None = None
        problem, parts = "", _parts(given)
        if parts > MAX_PARTS:
            problem = f"it has {parts} rules, matches and targets; expected at most {MAX_PARTS}"
        else:
            try:
                spec = msgspec.convert(given, self._kind)
            except msgspec.ValidationError as error:
                problem = f"{error}; expected the fields of its CRD"
        created, name = (str(metadata.get(key, "")) for key in ("creationTimestamp", "name"))
        return _Parsed(created, name, spec, problem, parts)


def _parts(spec: Any) -> int:
    rules = spec.get("rules") if isinstance(spec, dict) else None
    if not isinstance(rules, list):
        return 0
    inner = (rule.get(name) for rule in rules if isinstance(rule, dict) for name in ("matches", "targets"))
    return len(rules) + sum(len(one) for one in inner if isinstance(one, list))


def read_priorities(
    objectives: Iterable[Object], pool: PoolIdentity, parsed: "ParsedObjects[ObjectiveSpec] | None" = None
) -> Priorities:
    """Priorities of the InferenceObjectives for `pool`; one without a priority has 0, as in the Go picker."""
    found: dict[str, int] = {}
    problems: dict[str, str] = {}
    levels: set[int] = set()
    for name, spec, _ in _for_pool(parsed or ParsedObjects(ObjectiveSpec), objectives, pool, problems):
        priority = spec.priority or 0
        if len(levels) < MAX_PRIORITIES or priority in levels:
            levels.add(priority)
            found[name] = priority
        else:
            problems[name] = (
                f"its priority {priority} is one of more than {MAX_PRIORITIES} different ones; expected fewer"
            )
    return Priorities(found, problems)


def read_rewrites(
    rewrites: Iterable[Object], pool: PoolIdentity, parsed: "ParsedObjects[RewriteSpec] | None" = None
) -> Rewrites:
    """The rules of the InferenceModelRewrites for `pool`."""
    found: list[RewriteRule] = []
    problems: dict[str, str] = {}
    names: set[str] = set()
    total = 0
    for name, spec, one in _for_pool(parsed or ParsedObjects(RewriteSpec), rewrites, pool, problems):
        total += one.parts
        if total > MAX_ALL_PARTS:
            problems[name] = (
                f"this pool's resources have more than {MAX_ALL_PARTS} rules, matches and targets; expected fewer"
            )
            continue
        names.add(name)
        for rule in spec.rules or ():
            models = tuple(match.model.value for match in rule.matches or () if match.model is not None)
            if rule.matches and not models:
                continue  # a match without a model matches nothing; without a match it would be generic
            targets = (
                RewriteTarget(target.model_rewrite, target.weight or 0) for target in rule.targets or ()
            )
            found.append(RewriteRule(name, one.created, models, tuple(targets)))
    return Rewrites(found, frozenset(names), problems)


def _for_pool(
    parsed: ParsedObjects[Spec], objects: Iterable[Object], pool: PoolIdentity, problems: dict[str, str]
) -> Iterable[tuple[str, Spec, _Parsed[Spec]]]:
    """Name and spec of each object that is for `pool` and not being deleted."""
    for one in parsed.parse(objects):
        if one.spec is None:
            problems[one.name] = one.problem
        elif _is_for(one.spec, pool, one.name, problems):
            yield one.name, one.spec, one


@dataclass(frozen=True, slots=True)
class PickerReference:
    """The Service that gateways ask for an InferencePool. `port` None: the resource names none."""

    name: str
    port: int | None
    failure_mode: str

    def mismatch(self, grpc_port: int) -> str | None:
        """Why a picker on that port may not be the one that is asked; 0: its port was not chosen."""
        if self.port is None or not grpc_port or self.port == grpc_port:
            return None
        return (
            f"endpointPickerRef names port {self.port} of the Service {quoted(self.name, 253)}, and this picker listens on "
            f"{grpc_port} (--grpc-port); unless the Service maps one to the other, gateways reach no picker there and "
            f"follow failureMode {quoted(self.failure_mode, 32)}; name port {grpc_port}, or set the Service's targetPort to it"
        )


def picker_reference(pool: Object) -> PickerReference | None:
    """None: the InferencePool has none that can be read. The older group calls it `extensionRef`."""
    spec = pool.get("spec")
    given = spec.get("endpointPickerRef") or spec.get("extensionRef") if isinstance(spec, dict) else None
    if not isinstance(given, dict) or not isinstance(name := given.get("name"), str):
        return None
    port = given.get("port") or given.get("portNumber")
    number = port.get("number") if isinstance(port, dict) else port
    mode = given.get("failureMode")
    return PickerReference(
        name[:253],
        number if isinstance(number, int) and 0 < number < 65536 else None,
        mode[:32] if isinstance(mode, str) else "FailClose",
    )


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
