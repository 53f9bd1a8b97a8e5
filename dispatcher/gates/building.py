"""From the gate that a file names to one that can be asked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import aiohttp

from dispatcher.broker.budget import closing_point
from dispatcher.broker.ledger import Ledger
from dispatcher.broker.quota import Quota, QuotaMode, Quotas
from dispatcher.gates.all_of import AllOfGate
from dispatcher.gates.catalogue import INSTALLED, GateSpec
from dispatcher.gates.constant import steady
from dispatcher.gates.declaration import GateContext, GateDeclaration
from dispatcher.gates.gate import DispatchGate
from dispatcher.gates.joint import joint
from dispatcher.gates.ledger_gate import Gauge, LedgerGate, in_bytes, in_requests
from dispatcher.gates.local import LocalConcurrencyGate
from dispatcher.gates.meter import Meter, MeterRules, Meters, MeterSource, MeterState
from dispatcher.gates.parameters import (
    BudgetParameters,
    LocalParameters,
    MetricParameters,
    NoGateParameters,
    Parameters,
    QuotaParameters,
    ScrapeParameters,
)
from dispatcher.gates.sources import budget_source, query_source, saturation_source, scrape_source
from dispatcher.gates.tenant_quota import TenantQuotaGate
from runtime.config.problems import ConfigError
from runtime.entry_points import in_one_line
from runtime.os_reason import os_reason


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


def build_gate(spec: GateSpec, around: Surroundings) -> DispatchGate:
    """The gate, not entered yet; raises ConfigError where it could never open or never close.

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
    if spec.declaration is not None:
        return _installed(spec, spec.declaration, around)
    return _BUILDS[spec.type](spec, spec.parameters, around)


def _installed(spec: GateSpec, declaration: GateDeclaration, around: Surroundings) -> DispatchGate:
    try:
        gate = declaration.build(spec.parameters, GateContext(around.target, around.workers))
    except ValueError as error:
        raise ConfigError(f"{spec.place}.params", in_one_line(error, kind=False)) from error
    except Exception as error:
        raise _unusable(spec, f"cannot be built: {in_one_line(error)}") from error
    if missing := [member for member in _MEMBERS if not hasattr(gate, member)]:
        said = f"built a {type(gate).__name__} without {', '.join(missing)}; expected a DispatchGate"
        raise _unusable(spec, said)
    return gate


def _unusable(spec: GateSpec, said: str) -> ConfigError:
    return ConfigError(f"{spec.place}.type", str(INSTALLED.unusable(spec.type, spec.package, said)))


def _minds_overload(spec: GateSpec) -> bool:
    return spec.type in GAUGES or any(map(_minds_overload, spec.gates))


def _counted(spec: GateSpec, given: Parameters, around: Surroundings) -> DispatchGate:
    return _over_ledger([spec], around)


def _over_ledger(specs: Sequence[GateSpec], around: Surroundings) -> LedgerGate:
    """One gate for all of them: two would each count what is sent, and each take the other's for a stranger's."""
    gauges = [GAUGES[spec.type](spec, spec.parameters, around) for spec in specs]
    units = {unit for spec in specs for unit in spec.units}
    if len(units) > 1:
        raise ConfigError(specs[0].place, f"gates together count in one unit, not in {' and '.join(units)}")
    opened = gauges[0] if len(gauges) == 1 else lambda: joint(gauges)
    return LedgerGate(opened, around.ledger, in_bytes if units == {"bytes"} else in_requests)


def _constant(spec: GateSpec, given: NoGateParameters, around: Surroundings) -> OpenGauge:
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


def _metered(make: Callable[[Any, aiohttp.ClientSession], MeterSource]) -> BuildGauge:
    def build(spec: GateSpec, given: MetricParameters, around: Surroundings) -> OpenGauge:
        _can_close(spec, given, around.workers)
        try:
            given.access.tls()
        except OSError as error:
            raise ConfigError(
                f"{spec.place}.params.ca_file",
                f"no certificates there: {os_reason(error)}; expected a PEM file that this user can read",
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
            return Meter(make(given, around.meters.session), around.ledger.state, rules)

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
        raise ConfigError(
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

_MEMBERS: Final = ("__aenter__", "__aexit__", "budget", "admit")
"""What a DispatchGate has."""

_BUILDS: Final[Mapping[str, Build]] = {
    "constant": _counted,
    "prometheus-saturation": _counted,
    "prometheus-budget": _counted,
    "prometheus-query": _counted,
    "endpoint-scrape": _counted,
    "local-max-concurrency": _local,
    "redis-quota": _quota,
    "composite": _all_of,
    "all-of": _all_of,
    "wait-on-refuse": _all_of,
}
