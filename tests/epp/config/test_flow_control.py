"""The section flowControl, its gate and its policies; go_flow_control.yaml has the Go picker's cases."""

import random
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from adsum.config.problems import ConfigError
from epp.config.picker_config import PickerConfig, load_config
from epp.flow_control.settings import FlowControlSettings, PriorityBand
from tests.epp.flow_control.flow_settings import band_settings, flow_settings

HEAD = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
ON = {"featureGates": ["flowControl"]}
CASES: list[Any] = yaml.load((Path(__file__).parent / "go_flow_control.yaml").read_text(), yaml.CSafeLoader)
POLICIES = ("fairness", "ordering", "usage_limit")


def load(before: PickerConfig | None = None, **sections: Any) -> PickerConfig:
    text = yaml.safe_dump(HEAD | sections)
    return load_config(text, rng=random.Random(1), before=None if before is None else before.plugins)


def of_case(case: Any) -> dict[str, Any]:
    holdback = [{"type": "priority-holdback-policy", "parameters": case.get("parameters")}]
    plugins = holdback if "parameters" in case else case.get("plugins", [])
    return ON | {"plugins": plugins, "flowControl": case.get("flowControl", {})}


def words(settings: FlowControlSettings | PriorityBand) -> dict[str, Any]:
    """What differs from the defaults; policies by the names of their classes."""
    defaults = band_settings() if isinstance(settings, PriorityBand) else flow_settings()
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(settings)):
        value, default = getattr(settings, name), getattr(defaults, name)
        if name in POLICIES:
            value, default = (value, type(value).__name__), (default, type(default).__name__)
        if value != default:
            found[name] = value[1] if name in POLICIES else value
    for name in {"default_band", "default_negative_band"} & found.keys():
        found[name] = words(found[name])
    if "bands" in found:
        found["bands"] = {priority: words(band) for priority, band in found["bands"].items()}
    return found


@pytest.mark.parametrize(
    "case", [case for case in CASES if "settings" in case], ids=lambda case: case["what"]
)
def test_a_section_of_the_go_picker(case: Any) -> None:
    settings = load(**of_case(case)).flow_control
    assert settings is not None
    assert words(settings) == case["settings"]


@pytest.mark.parametrize("case", [case for case in CASES if "problem" in case], ids=lambda case: case["what"])
def test_what_is_wrong_is_told_with_its_place(case: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**of_case(case))
    [problem] = caught.value.problems
    place, detail = case["problem"]
    assert problem.place == place
    assert detail in problem.detail


def test_the_defaults_are_the_go_pickers() -> None:
    settings = asdict(flow_settings())
    assert {name: value for name, value in settings.items() if isinstance(value, float | int)} == {
        "request_ttl": 60.0,
        "no_endpoint_ttl": 60.0,
        "eviction": False,
        "idle_band": 600.0,
    }
    band = flow_settings().default_band
    assert (band.max_requests, band.max_bytes) == (5000, 1_000_000_000)
    policies = [type(one).__name__ for one in (band.fairness, band.ordering, flow_settings().usage_limit)]
    assert policies == ["GlobalStrict", "FirstComeFirstServed", "StaticUsageLimit"]


@pytest.mark.parametrize("gates", [[], ["flowControl=false"], ["flowControl", "flowControl=false"]])
def test_without_the_gate_the_section_has_no_effect_and_the_log_says_so(gates: list[str]) -> None:
    config = load(featureGates=gates, flowControl={"maxBytes": "1024"})
    assert config.flow_control is None
    assert config.warnings == (
        "flowControl has no effect without featureGates: [flowControl], except for its saturationDetector",
    )
    assert load(featureGates=gates, flowControl={"saturationDetector": {}}).warnings == ()


@pytest.mark.parametrize("gate", ["flowControl", "flowControl=true", " flowControl = TRUE "])
def test_with_the_gate_it_has(gate: str) -> None:
    config = load(featureGates=[gate], flowControl={"maxBytes": "1024"})
    assert config.flow_control is not None
    assert config.flow_control.max_bytes == 1024
    assert config.warnings == ()


def test_flow_control_takes_the_place_of_the_window_for_bursts() -> None:
    burst = {
        "type": "prefix-cache-scorer",
        "parameters": {"prefixMatchInfoProducerName": "burst-prefix-cache-producer"},
    }
    plugins = [{"type": "burst-prefix-cache-producer"}, burst]
    [warning] = load(**ON, plugins=plugins).warnings
    assert "prompts are not placed together" in warning
    assert load(plugins=plugins).warnings == ()


def test_validate_says_what_waits() -> None:
    bands = [{"priority": 1, "maxRequests": 7}, {"priority": 2, "orderingPolicyRef": "edf-ordering-policy"}]
    config = load(**ON, flowControl={"priorityBands": bands, "noEndpointRequestTTL": "0s"})
    assert config.steps[:5] == (
        "flow control: a request waits 60 s while the pool is full, without a limit while it is empty",
        "flow control: priority 2: 5000 requests and 1000000000 bytes may wait; global-strict-fairness-policy, edf-ordering-policy",
        "flow control: priority 1: 7 requests and 1000000000 bytes may wait; global-strict-fairness-policy, fcfs-ordering-policy",
        "flow control: other priorities: 5000 requests and 1000000000 bytes may wait; global-strict-fairness-policy, fcfs-ordering-policy",
        "flow control: utilization-detector says how full the pool is, static-usage-limit-policy how full it may be",
    )


def test_validate_says_what_the_concurrency_detector_needs() -> None:
    flow = {"saturationDetector": {"pluginRef": "mine"}}
    config = load(**ON, flowControl=flow, plugins=[{"type": "concurrency-detector", "name": "mine"}])
    [said] = [step for step in config.steps if "needs" in step]
    assert said.startswith("flow control: mine needs an Envoy of")
    assert "--response-trailer SEND" in said


def test_a_limit_of_each_picker_is_warned_of() -> None:
    flow = {"saturationDetector": {"pluginRef": "mine"}}
    plugins = [{"type": "concurrency-detector", "name": "mine"}]
    for given in ({}, ON):
        [warning] = load(**given, flowControl=flow, plugins=plugins).warnings
        assert warning.startswith("mine counts what this picker alone has in flight")
    assert load(**ON, plugins=plugins).warnings == (), "as a filter only"


def test_a_file_that_says_the_same_keeps_the_same_settings() -> None:
    flow = {"usageLimitPolicyPluginRef": "soft-reflective-ceiling-policy", "maxRequests": 9}
    first = load(**ON, flowControl=flow)
    again = load(first, **ON, flowControl=flow, plugins=[{"type": "queue-scorer"}])
    assert again.flow_control == first.flow_control, "its limit goes on counting where it was"
    assert load(first, **ON, flowControl=flow | {"maxRequests": 8}).flow_control != first.flow_control


def test_programs_are_followed_only_where_their_policy_is_in_force() -> None:
    plugins = [{"type": "queue-scorer"}, {"type": "program-aware-fairness"}]
    band = {"fairnessPolicyRef": "program-aware-fairness"}
    flow = {"defaultPriorityBand": band, "priorityBands": [{"priority": 1} | band]}
    config = load(**ON, plugins=plugins, flowControl=flow)
    [policy] = config.scheduler.producers
    assert config.flow_control is not None
    assert policy is config.flow_control.default_band.fairness
    assert policy is config.flow_control.bands[1].fairness
    assert load(config, **ON, plugins=plugins[::-1], flowControl=flow).scheduler.producers == [policy]
    assert load(**ON, plugins=plugins).scheduler.producers == []
    assert load(plugins=plugins, flowControl=flow).scheduler.producers == []
