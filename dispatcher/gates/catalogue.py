"""The types of gates and their parameters; parses and checks the gates of a configuration.

It imports no gate: reading a configuration must not load aiohttp.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from adsum.config.problems import ConfigError, did_you_mean
from adsum.config.sections import read_section
from adsum.entry_points import PluginError, PluginGroup
from dispatcher.gates import parameters as gate_parameters
from dispatcher.gates.gate import GateDeclaration


@dataclass(frozen=True, slots=True)
class GateSpec:
    """A checked gate of a configuration. A reload rebuilds the gates whose spec changed.

    `declaration` and `package` are set for a gate of an installed package.
    """

    type: str
    parameters: gate_parameters.Parameters
    place: str
    gates: tuple["GateSpec", ...] = ()
    declaration: GateDeclaration | None = None
    package: str = ""

    @property
    def units(self) -> frozenset[str]:
        """The units in which its metric gates count capacity: requests, bytes; empty if it reads no metric."""
        own = (
            {self.parameters.unit} if isinstance(self.parameters, gate_parameters.MetricParameters) else set()
        )
        return frozenset(own).union(*(one.units for one in self.gates))


def parse_gate(document: Mapping[str, Any], place: str) -> GateSpec:
    """Parse `{"type": ..., "params": {...}}`; raises ConfigError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        raise ConfigError(place, f"expected a mapping with a type; types: {_listed(GATES)}")
    for name in document:
        if name not in ("type", "params"):
            raise ConfigError(place, f"unknown field {name!r}; known: type, params")
    name, given = document["type"], document.get("params") or {}
    if name not in GATES:
        return _installed(name, given, place)
    parameters = read_section(GATES[name], given, f"{place}.params", secrets=True)
    return GateSpec(name, parameters, place, _children(parameters, f"{place}.params"))


def _installed(name: str, given: object, place: str) -> GateSpec:
    try:
        found = INSTALLED.load(name)
        if found is None:
            known = (
                "a gate of the Go processor that is not built here" if name in GO_ONLY else "no known gate"
            )
            there = did_you_mean(name, {**GATES, **INSTALLED.packages()})
            raise ConfigError(f"{place}.type", f"{name!r:.80} is {known}; {there}")
        declared = found.value
        if not isinstance(declared, GateDeclaration) or not _are_parameters(declared.parameters):
            message = f"is {declared!r:.80}; expected a dispatcher.extension.GateDeclaration, its parameters a Parameters"
            raise INSTALLED.unusable(name, found.package, message)
    except PluginError as error:
        raise ConfigError(f"{place}.type", str(error)) from error
    parameters = read_section(declared.parameters, given, f"{place}.params", secrets=True)
    return GateSpec(name, parameters, place, declaration=declared, package=found.package)


def _are_parameters(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, gate_parameters.Parameters)


def _children(parameters: gate_parameters.Parameters, place: str) -> tuple[GateSpec, ...]:
    if isinstance(parameters, gate_parameters.WaitOnRefuseParameters):
        return (parse_gate(parameters.gate, f"{place}.gate"),)
    if isinstance(parameters, gate_parameters.AllOfParameters):
        places = (f"{place}.gates[{index}]" for index in range(len(parameters.gates)))
        return tuple(map(parse_gate, parameters.gates, places))
    return ()


GATES: Final[Mapping[str, type[gate_parameters.Parameters]]] = {
    "constant": gate_parameters.NoGateParameters,
    "prometheus-saturation": gate_parameters.SaturationParameters,
    "prometheus-budget": gate_parameters.BudgetParameters,
    "prometheus-query": gate_parameters.QueryParameters,
    "endpoint-scrape": gate_parameters.ScrapeParameters,
    "local-max-concurrency": gate_parameters.LocalParameters,
    "redis-quota": gate_parameters.QuotaParameters,
    "composite": gate_parameters.AllOfParameters,
    "all-of": gate_parameters.AllOfParameters,
    "wait-on-refuse": gate_parameters.WaitOnRefuseParameters,
}
"""Each type and its parameters."""

INSTALLED: Final = PluginGroup("adsum.gates", "gate", GATES.keys())

GO_ONLY: Final = frozenset({"redis", "redis-leased-rate", "tier-priority-admission", "sql-quota", "aimd"})
"""Gates of llm-d's Go processor that we lack: the error for such a name says so."""


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
