"""Builds gates from their checked specs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, cast

import aiohttp

from adsum.config.problems import ConfigError
from adsum.entry_points import in_one_line
from adsum.errors import os_reason
from dispatcher.broker.capacity.budget import closing_point
from dispatcher.broker.contract.ledger import Ledger, Quota, QuotaMode, Quotas
from dispatcher.gates.built_in.ledger_gate import LedgerGate, count_bytes, count_requests
from dispatcher.gates.built_in.limits import AllOfGate, LocalConcurrencyGate, TenantQuotaGate
from dispatcher.gates.catalogue import INSTALLED, GateSpec
from dispatcher.gates.gate import DispatchGate, GateContext, GateDeclaration
from dispatcher.gates.metering import metric_sources
from dispatcher.gates.metering.meter import Meter, Meters, MeterSource, MeterState
from dispatcher.gates.parameters import (
    BudgetParameters,
    LocalParameters,
    MetricParameters,
    QuotaParameters,
    ScrapeParameters,
)


@dataclass(frozen=True, slots=True)
class GateDependencies:
    """The parts that gates are built from. `concurrency`: requests that this process sends to the target at once; None: unknown."""

    target: str
    ledger: Ledger
    quotas: Quotas
    meters: Meters
    concurrency: int | None = None


SourceBuilder = Callable[[Any, aiohttp.ClientSession], MeterSource]


def build_gate(spec: GateSpec, dependencies: GateDependencies) -> DispatchGate:
    """The gate, not entered yet; raises ConfigError if it could never open or never close.

    Every gate must close when the target reports an overload. One without a ledger is combined with a ledger that is always open.
    """
    gate = _build(spec, dependencies)
    if _has_ledger(spec):
        return gate
    return AllOfGate([gate, LedgerGate([], dependencies.ledger)])


def meter_states(gate: DispatchGate) -> list[MeterState]:
    """The meters of the metric gates in it."""
    if isinstance(gate, AllOfGate):
        return [state for one in gate.gates for state in meter_states(one)]
    return [meter.state for meter in gate.meters] if isinstance(gate, LedgerGate) else []


def _build(spec: GateSpec, dependencies: GateDependencies) -> DispatchGate:
    if spec.declaration is not None:
        return _installed(spec, spec.declaration, dependencies)
    if spec.gates:
        return _all_of(spec, dependencies)
    if spec.type in SOURCES:
        return _ledger_gate([spec], dependencies)
    return _LIMITS[spec.type](spec.parameters, dependencies)


def _installed(spec: GateSpec, declaration: GateDeclaration, dependencies: GateDependencies) -> DispatchGate:
    try:
        gate = declaration.build(spec.parameters, GateContext(dependencies.target, dependencies.concurrency))
    except ValueError as error:
        raise ConfigError(f"{spec.place}.params", in_one_line(error, kind=False)) from error
    except Exception as error:
        raise _unusable(spec, f"cannot be built: {in_one_line(error)}") from error
    if missing := [member for member in _GATE_METHODS if not hasattr(gate, member)]:
        message = f"built a {type(gate).__name__} without {', '.join(missing)}; expected a DispatchGate"
        raise _unusable(spec, message)
    return gate


def _unusable(spec: GateSpec, message: str) -> ConfigError:
    return ConfigError(f"{spec.place}.type", str(INSTALLED.unusable(spec.type, spec.package, message)))


def _has_ledger(spec: GateSpec) -> bool:
    return spec.type in SOURCES or any(map(_has_ledger, spec.gates))


def _ledger_gate(specs: Sequence[GateSpec], dependencies: GateDependencies) -> LedgerGate:
    """One gate over all meters: two gates would reserve each request twice, and each take the other's for foreign load."""
    built = [(spec, SOURCES[spec.type]) for spec in specs]
    meters = [_meter(spec, source, dependencies) for spec, source in built if source is not None]
    units = {unit for spec in specs for unit in spec.units}
    if len(units) > 1:
        raise ConfigError(specs[0].place, f"gates together count in one unit, not in {' and '.join(units)}")
    return LedgerGate(meters, dependencies.ledger, count_bytes if units == {"bytes"} else count_requests)


def _local(given: LocalParameters, dependencies: GateDependencies) -> DispatchGate:
    return LocalConcurrencyGate(given.limit)


def _quota(given: QuotaParameters, dependencies: GateDependencies) -> DispatchGate:
    quota = Quota(given.limit, QuotaMode(given.mode), round(given.window * 1000), round(given.lease * 1000))
    return TenantQuotaGate(dependencies.quotas, quota, given.prefix)


def _all_of(spec: GateSpec, dependencies: GateDependencies) -> DispatchGate:
    """Gates with a ledger are asked first, as one. wait-on-refuse is all-of with one gate: refused requests always wait."""
    leaves = list(_leaf_specs(spec))
    counted = [leaf for leaf in leaves if leaf.type in SOURCES]
    others = [_build(leaf, dependencies) for leaf in leaves if leaf.type not in SOURCES]
    return AllOfGate([*([_ledger_gate(counted, dependencies)] if counted else []), *others])


def _leaf_specs(spec: GateSpec) -> Iterator[GateSpec]:
    if not spec.gates:
        yield spec
    for one in spec.gates:
        yield from _leaf_specs(one)


def _meter(
    spec: GateSpec, source: SourceBuilder, dependencies: GateDependencies
) -> Callable[[], AbstractAsyncContextManager[Meter]]:
    given = cast(MetricParameters, spec.parameters)
    _check_closable(spec, given, dependencies.concurrency)
    try:
        given.tls()
    except OSError as error:
        raise ConfigError(
            f"{spec.place}.params.ca_file",
            f"no certificates there: {os_reason(error)}; expected a PEM file that this user can read",
        ) from error

    def meter() -> Meter:
        return Meter(source(given, dependencies.meters.session), dependencies.ledger.state, given)

    return lambda: dependencies.meters.shared((dependencies.target, spec.type, repr(given)), meter)


def _check_closable(spec: GateSpec, given: MetricParameters, concurrency: int | None) -> None:
    """Refuse a gate that closes at a load which this process alone cannot reach: it would never close by itself."""
    per_server, counted = given.max_concurrency, isinstance(given, BudgetParameters)
    if isinstance(given, ScrapeParameters) and given.max_count_per_pod > 0:
        per_server, counted = given.max_count_per_pod, True
    closes_at = closing_point(per_server * (given.known_servers or Fraction(1)), given.reserve)
    if concurrency is None or given.allow_unreachable or given.unit != "requests" or not counted:
        return
    if concurrency < closes_at:
        raise ConfigError(
            f"{spec.place}.params",
            f"the gate closes at a load of {float(closes_at):g} requests, but this process sends {concurrency} at most: "
            "it can never fill the target that far. Lower max_concurrency (or max_count_per_pod) to what a model "
            "server takes, send more at once, or set allow_unreachable: true where others load the target, too",
        )


SOURCES: Final[Mapping[str, SourceBuilder | None]] = {
    "constant": None,
    "prometheus-saturation": metric_sources.saturation_source,
    "prometheus-budget": metric_sources.budget_source,
    "prometheus-query": metric_sources.query_source,
    "endpoint-scrape": metric_sources.scrape_source,
}
"""The gates that count in the target's ledger, and what their meters read. None: they have no meter."""

_GATE_METHODS: Final = ("__aenter__", "__aexit__", "budget", "admit")
"""The methods of a DispatchGate. Checked by name: a Protocol cannot be, since its classes need not derive from it."""

_LIMITS: Final[Mapping[str, Callable[[Any, GateDependencies], DispatchGate]]] = {
    "local-max-concurrency": _local,
    "redis-quota": _quota,
}
