"""Which gates there are: from what a file says to a gate, and plain words for what it may not say."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from dispatcher.budget import closing_point
from dispatcher.gates.all_of import AllOfGate
from dispatcher.gates.constant import steady
from dispatcher.gates.gate import DispatchGate
from dispatcher.gates.joint import joint
from dispatcher.gates.ledger_gate import Gauge, LedgerGate, in_bytes, in_requests
from dispatcher.gates.local import LocalConcurrencyGate
from dispatcher.gates.meter import Meter, MeterRules, Meters, MeterState, Source
from dispatcher.gates.parameters import (
    AllOfParameters,
    BudgetParameters,
    LocalParameters,
    MetricParameters,
    NoParameters,
    Parameters,
    QueryParameters,
    QuotaParameters,
    SaturationParameters,
    ScrapeParameters,
    WaitOnRefuseParameters,
)
from dispatcher.gates.sources import budget_source, query_source, saturation_source, scrape_source
from dispatcher.gates.tenant_quota import TenantQuotaGate
from dispatcher.ledger import Ledger
from dispatcher.quota import Quota, QuotaMode, Quotas


class GateConfigError(ValueError):
    """A gate is not sound; the text names the place, what was found there and what could stand there."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place


@dataclass(frozen=True, slots=True)
class GateSpec:
    """One gate of a file, checked; equal specs make equal gates."""

    type: str
    parameters: Parameters
    place: str
    gates: tuple["GateSpec", ...] = ()

    @property
    def units(self) -> frozenset[str]:
        """In what it counts the target's capacity: requests, bytes, both or, where it reads nothing, neither."""
        own = {self.parameters.unit} if isinstance(self.parameters, MetricParameters) else set()
        return frozenset(own).union(*(one.units for one in self.gates))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a gate is built into. `workers`: places for requests in this process; None: not checked against anything."""

    target: str
    ledger: Ledger
    quotas: Quotas
    meters: Meters
    workers: int | None = None


Build = Callable[[GateSpec, Any, Surroundings], DispatchGate]
OpenGauge = Callable[[], AbstractAsyncContextManager[Gauge]]
BuildGauge = Callable[[GateSpec, Any, Surroundings], OpenGauge]


def parse_gate(document: Mapping[str, Any], place: str) -> GateSpec:
    """The gate that `{"type": ..., "params": {...}}` means; raises GateConfigError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        raise GateConfigError(place, f"expected a mapping with a type; types: {_listed(GATES)}")
    for name in document:
        if name not in ("type", "params"):
            raise GateConfigError(place, f"unknown field {name!r}; known: type, params")
    name = document["type"]
    if name not in GATES:
        known = "a gate of the Go processor that is not built here" if name in GO_ONLY else "no known gate"
        raise GateConfigError(f"{place}.type", f"{name!r} is {known}; there are: {_listed(GATES)}")
    kind, given = GATES[name][0], document.get("params") or {}
    parameters = _read(kind, given, f"{place}.params")
    return GateSpec(name, parameters, place, _children(parameters, f"{place}.params"))


def _children(parameters: Parameters, place: str) -> tuple[GateSpec, ...]:
    if isinstance(parameters, WaitOnRefuseParameters):
        return (parse_gate(parameters.gate, f"{place}.gate"),)
    if isinstance(parameters, AllOfParameters):
        places = (f"{place}.gates[{index}]" for index in range(len(parameters.gates)))
        return tuple(map(parse_gate, parameters.gates, places))
    return ()


def _read(kind: type[Parameters], given: object, place: str) -> Parameters:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise GateConfigError(place + where, first["msg"].removeprefix("Value error, ")) from error


def build_gate(spec: GateSpec, around: Surroundings) -> DispatchGate:
    """The gate, not entered yet; raises GateConfigError where it could never open or never close.

    Whatever its type, it minds what the target says: one that has no ledger in it gets one.
    """
    gate = _build(spec, around)
    if _minds_overload(spec):
        return gate
    return AllOfGate([gate, LedgerGate(steady, around.ledger)])


def meter_states(gate: DispatchGate) -> list[MeterState]:
    """What the metric gates in it read now; for metrics."""
    if isinstance(gate, AllOfGate):
        return [state for one in gate.gates for state in meter_states(one)]
    return list(gate.gauge.states) if isinstance(gate, LedgerGate) else []


def _build(spec: GateSpec, around: Surroundings) -> DispatchGate:
    return GATES[spec.type][1](spec, spec.parameters, around)


def _minds_overload(spec: GateSpec) -> bool:
    return spec.type in GAUGES or any(map(_minds_overload, spec.gates))


def _counted(spec: GateSpec, given: Parameters, around: Surroundings) -> DispatchGate:
    return _over_ledger([spec], around)


def _over_ledger(specs: Sequence[GateSpec], around: Surroundings) -> LedgerGate:
    """One gate for all of them: two would each count what is sent, and each take the other's for a stranger's."""
    gauges = [GAUGES[spec.type](spec, spec.parameters, around) for spec in specs]
    units = {unit for spec in specs for unit in spec.units}
    if len(units) > 1:
        raise GateConfigError(
            specs[0].place, f"gates together count in one unit, not in {' and '.join(units)}"
        )
    opened = gauges[0] if len(gauges) == 1 else lambda: joint(gauges)
    return LedgerGate(opened, around.ledger, in_bytes if units == {"bytes"} else in_requests)


def _constant(spec: GateSpec, given: NoParameters, around: Surroundings) -> OpenGauge:
    return steady


def _local(spec: GateSpec, given: LocalParameters, around: Surroundings) -> DispatchGate:
    return LocalConcurrencyGate(given.limit)


def _quota(spec: GateSpec, given: QuotaParameters, around: Surroundings) -> DispatchGate:
    quota = Quota(given.limit, QuotaMode(given.mode), round(given.window * 1000), round(given.lease * 1000))
    return TenantQuotaGate(around.quotas, quota, given.prefix)


def _all_of(spec: GateSpec, given: Parameters, around: Surroundings) -> DispatchGate:
    """What has a ledger is asked first, as one. Who is refused waits, here always: wait-on-refuse is all of one."""
    leaves = list(_leaves(spec))
    counted = [leaf for leaf in leaves if leaf.type in GAUGES]
    others = [_build(leaf, around) for leaf in leaves if leaf.type not in GAUGES]
    return AllOfGate([*([_over_ledger(counted, around)] if counted else []), *others])


def _leaves(spec: GateSpec) -> Iterator[GateSpec]:
    if not spec.gates:
        yield spec
    for one in spec.gates:
        yield from _leaves(one)


def _metered(make: Callable[[Any, aiohttp.ClientSession], Source]) -> BuildGauge:
    def build(spec: GateSpec, given: MetricParameters, around: Surroundings) -> OpenGauge:
        _can_close(spec, given, around.workers)
        try:
            given.access.tls()
        except OSError as error:
            raise GateConfigError(
                f"{spec.place}.params.ca_file", f"no certificates there: {error}"
            ) from error
        rules = MeterRules(
            interval=given.interval,
            lag=given.lag,
            stale_after=given.stale_after,
            timeout=given.timeout,
            fallback=given.fallback,
            fallback_capacity=given.max_concurrency * (given.known_servers or 1),
        )

        def meter() -> Meter:
            return Meter(make(given, around.meters.session), around.ledger.now_ms, rules)

        def gauge() -> AbstractAsyncContextManager[Gauge]:
            return around.meters.shared((around.target, spec.type, repr(given)), meter)

        return gauge

    return build


def _can_close(spec: GateSpec, given: MetricParameters, workers: int | None) -> None:
    """A gate that counts up to a point that this process alone never reaches never closes by itself."""
    per_server, counted = given.max_concurrency, isinstance(given, BudgetParameters)
    if isinstance(given, ScrapeParameters) and given.max_count_per_pod > 0:
        per_server, counted = given.max_count_per_pod, True
    closes_at = closing_point(per_server * (given.known_servers or Fraction(1)), given.reserve)
    if workers is None or given.allow_unreachable or given.unit != "requests" or not counted:
        return
    if workers < closes_at:
        raise GateConfigError(
            f"{spec.place}.params",
            f"the gate closes at a load of {float(closes_at):g} requests, but this process sends {workers} at most: "
            "it can never fill the target that far. Lower max_concurrency (or max_count_per_pod) to what a model "
            "server takes, send more at once, or set allow_unreachable: true where others load the target, too",
        )


GAUGES: Final[Mapping[str, BuildGauge]] = {
    "constant": _constant,
    "prometheus-saturation": _metered(saturation_source),
    "prometheus-budget": _metered(budget_source),
    "prometheus-query": _metered(query_source),
    "endpoint-scrape": _metered(scrape_source),
}
"""What stands behind the gates that count in the target's ledger."""

GATES: Final[Mapping[str, tuple[type[Parameters], Build]]] = {
    "constant": (NoParameters, _counted),
    "prometheus-saturation": (SaturationParameters, _counted),
    "prometheus-budget": (BudgetParameters, _counted),
    "prometheus-query": (QueryParameters, _counted),
    "endpoint-scrape": (ScrapeParameters, _counted),
    "local-max-concurrency": (LocalParameters, _local),
    "redis-quota": (QuotaParameters, _quota),
    "composite": (AllOfParameters, _all_of),
    "all-of": (AllOfParameters, _all_of),
    "wait-on-refuse": (WaitOnRefuseParameters, _all_of),
}

GO_ONLY: Final = frozenset({"redis", "redis-leased-rate", "tier-priority-admission", "sql-quota", "aimd"})
"""Naming one of these is an error that says so."""


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
