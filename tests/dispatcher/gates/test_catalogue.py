"""Invalid gates are reported at start."""

from typing import Any

import pytest
import yaml

from adsum.config.problems import ConfigError
from dispatcher.broker.memory.broker import MemoryLedger, MemoryQuotas, wall_clock_ms
from dispatcher.gates.building import GateDependencies, build_gate, meter_states
from dispatcher.gates.catalogue import GATES, parse_gate
from dispatcher.gates.metering.meter import Meters
from tests.dispatcher.gates.gate_tools import open_gate

PROMETHEUS = {"url": "http://127.0.0.1:9", "pool": "pool"}
PAGE = {"url": "http://127.0.0.1:9/metrics", "metric": "load", "max_count_per_pod": 10}


FAULTS = r"""
{type: prometheus-budged} | gate.type: 'prometheus-budged' is no known gate; did you mean 'prometheus-budget'
{type: tier-priority-admission} | a gate of the Go processor that is not built here
{} | expected a mapping with a type
constant | expected a mapping with a type
{type: constant, parameters: {}} | unknown field 'parameters'; known: type, params
{type: constant, params: {budget: 1}} | unknown field 'budget'; known: none
{type: local-max-concurrency} | gate.params.limit: it is missing
{type: local-max-concurrency, params: {limit: 0}} | greater than or equal to 1
{type: redis-quota, params: {limit: 1, mode: speed}} | 'concurrency' or 'rate-limit'
{type: redis-quota, params: {limit: 1, window: 1 minute}} | is not a duration
{type: prometheus-query, params: {url: 'http://127.0.0.1:9', pool: pool}} | gate.params.query: it is missing
{type: prometheus-query, params: {url: 'http://p', query: x}} | set pool, or pods, or pods_query
{type: prometheus-budget, params: {url: 'http://p', pods: 1}} | a query that gives the load
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: pool, baseline: 1}} | less than 1
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: pool, baseline: 5%}} | '5%' is not a decimal number
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: pool, max_concurrency: 0}} | greater than 0
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: pool, fallback: 2}} | less than or equal to 1
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: pool, fallback: true}} | expected a number
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: pool, fallback: .nan}} | not a decimal number
{type: prometheus-budget, params: {url: 'p:9090', pool: pool}} | gate.params.url
{type: prometheus-budget, params: {url: 'http://127.0.0.1:9', pool: 'p"} or vector(1)'}} | gate.params.pool
{type: prometheus-saturation, params: {url: 'http://127.0.0.1:9', pool: pool, threshold: 1.1}} | less than or equal to 1
{type: endpoint-scrape, params: {url: 'http://127.0.0.1:9/metrics', metric: load, max_count_per_pod: 10, pods_url: 'http://p/'}} | pods_url needs pods_metric
{type: endpoint-scrape, params: {url: 'http://127.0.0.1:9/metrics', metric: [], max_count_per_pod: 10}} | gate.params.metric
{type: composite, params: {gates: [{type: constant}, {type: open}]}} | gate.params.gates\[1\].type: 'open' is no known gate
{type: all-of, params: {gates: []}} | at least 1 item
{type: wait-on-refuse, params: {}} | gate.params.gate: it is missing
{type: wait-on-refuse, params: {gate: {type: x}}} | gate.params.gate.type: 'x' is no
"""


@pytest.mark.parametrize("row", FAULTS.strip().splitlines())
def test_14_what_is_wrong_is_an_error_that_says_what_could_stand_there(row: str) -> None:
    gate, said = row.split(" | ")
    with pytest.raises(ConfigError, match=said):
        parse_gate(yaml.safe_load(gate), "gate")


@pytest.mark.parametrize(
    ("document", "workers", "fits"),
    [
        ({"type": "prometheus-budget", "params": PROMETHEUS}, 94, False),  # 100 x (1 - .05)
        ({"type": "prometheus-budget", "params": PROMETHEUS}, 95, True),
        (
            {"type": "prometheus-budget", "params": {**PROMETHEUS, "pods": 5, "max_concurrency": 10}},
            47,
            False,
        ),
        ({"type": "prometheus-budget", "params": {**PROMETHEUS, "pods": 5, "max_concurrency": 10}}, 48, True),
        ({"type": "prometheus-budget", "params": {**PROMETHEUS, "allow_unreachable": True}}, 1, True),
        ({"type": "endpoint-scrape", "params": {**PAGE, "pods": 2, "baseline": 0.1}}, 17, False),
        ({"type": "endpoint-scrape", "params": {**PAGE, "pods": 2, "baseline": 0.1}}, 18, True),
        ({"type": "all-of", "params": {"gates": [{"type": "endpoint-scrape", "params": PAGE}]}}, 9, False),
        (
            {"type": "wait-on-refuse", "params": {"gate": {"type": "endpoint-scrape", "params": PAGE}}},
            9,
            False,
        ),
        ({"type": "prometheus-budget", "params": PROMETHEUS}, None, True),
        ({"type": "prometheus-saturation", "params": PROMETHEUS}, 1, True),
    ],
)
async def test_14_a_closing_point_that_cannot_be_reached_is_an_error(
    document: dict[str, Any], workers: int | None, fits: bool
) -> None:
    dependencies = GateDependencies(
        "pool", MemoryLedger(wall_clock_ms), MemoryQuotas(wall_clock_ms), Meters(), workers
    )
    spec = parse_gate(document, "gate")
    if fits:
        build_gate(spec, dependencies)
        return
    with pytest.raises(ConfigError, match=f"this process sends {workers} at most: it can never"):
        build_gate(spec, dependencies)


async def test_14_certificates_that_are_none_are_an_error_at_start() -> None:
    with pytest.raises(ConfigError, match=r"gate.params.ca_file: no certificates there"):
        async with open_gate("prometheus-budget", {**PROMETHEUS, "ca_file": "/nowhere/ca.pem"}):
            pass


def test_equal_documents_make_equal_specs() -> None:
    document = {"type": "all-of", "params": {"gates": [{"type": "endpoint-scrape", "params": PAGE}]}}
    assert parse_gate(document, "gate") == parse_gate(document, "gate")


async def test_states_of_metric_gates_only() -> None:
    gates = [{"type": "constant"}, {"type": "prometheus-saturation", "params": PROMETHEUS}]
    async with open_gate("all-of", {"gates": gates}) as gate:
        [state] = meter_states(gate)
        assert (state.name, state.available) == ("saturation of pool", False)


def test_every_gate_of_the_catalogue_has_parameters_that_say_what_they_are() -> None:
    for parameters in GATES.values():
        assert parameters.__doc__
