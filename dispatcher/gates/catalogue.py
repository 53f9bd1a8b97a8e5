"""Which gates a file may name: checked, with plain words for what it may not say. What they do is not imported for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.gates.parameters import (
    AllOfParameters,
    BudgetParameters,
    LocalParameters,
    MetricParameters,
    NoGateParameters,
    Parameters,
    QueryParameters,
    QuotaParameters,
    SaturationParameters,
    ScrapeParameters,
    WaitOnRefuseParameters,
)
from runtime.config.problems import ConfigError
from runtime.config.sections import read_section


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


def parse_gate(document: Mapping[str, Any], place: str) -> GateSpec:
    """The gate that `{"type": ..., "params": {...}}` means; raises ConfigError."""
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        raise ConfigError(place, f"expected a mapping with a type; types: {_listed(GATES)}")
    for name in document:
        if name not in ("type", "params"):
            raise ConfigError(place, f"unknown field {name!r}; known: type, params")
    name = document["type"]
    if name not in GATES:
        known = "a gate of the Go processor that is not built here" if name in GO_ONLY else "no known gate"
        raise ConfigError(f"{place}.type", f"{name!r} is {known}; there are: {_listed(GATES)}")
    kind, given = GATES[name], document.get("params") or {}
    parameters = read_section(kind, given, f"{place}.params", secrets=True)
    return GateSpec(name, parameters, place, _children(parameters, f"{place}.params"))


def _children(parameters: Parameters, place: str) -> tuple[GateSpec, ...]:
    if isinstance(parameters, WaitOnRefuseParameters):
        return (parse_gate(parameters.gate, f"{place}.gate"),)
    if isinstance(parameters, AllOfParameters):
        places = (f"{place}.gates[{index}]" for index in range(len(parameters.gates)))
        return tuple(map(parse_gate, parameters.gates, places))
    return ()


GATES: Final[Mapping[str, type[Parameters]]] = {
    "constant": NoGateParameters,
    "prometheus-saturation": SaturationParameters,
    "prometheus-budget": BudgetParameters,
    "prometheus-query": QueryParameters,
    "endpoint-scrape": ScrapeParameters,
    "local-max-concurrency": LocalParameters,
    "redis-quota": QuotaParameters,
    "composite": AllOfParameters,
    "all-of": AllOfParameters,
    "wait-on-refuse": WaitOnRefuseParameters,
}
"""Each type and what may stand in its params."""

GO_ONLY: Final = frozenset({"redis", "redis-leased-rate", "tier-priority-admission", "sql-quota", "aimd"})
"""Naming one of these is an error that says so."""


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
