import contextlib
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from adsum.config.problems import ConfigError
from adsum.process_limits import memory_limit
from epp.config.catalogue import GO_ONLY, PLUGINS
from epp.config.data_layer import MetricsSourceParameters
from epp.config.picker_config import PickerConfig, load_config
from epp.config.settings import Settings
from epp.configuration import Configuration
from epp.endpoints.endpoint import DECODE_ROLES, ROLE_LABEL
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings
from epp.scheduling.filters import LabelFilter, LabelSelectorFilter
from epp.scheduling.in_flight_load.plugins import ConcurrencyDetector
from epp.scheduling.in_flight_load.prefix_affinity import PrefixCacheAffinityFilter
from epp.scheduling.in_flight_load.producer import InFlightLoadProducer
from epp.scheduling.kv_events.producer import PrecisePrefixCacheProducer
from epp.scheduling.pickers import MaxScorePicker, WeightedRandomPicker
from epp.scheduling.prefix.producer import PRODUCER, PrefixCacheProducer
from epp.scheduling.prefix.scorer import PrefixCacheScorer
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.scorers.load_scorers import ActiveRequestScorer, KvCacheUtilizationScorer, QueueScorer
from epp.scheduling.work_ahead.least_cost import LeastCostScorer
from epp.scheduling.work_ahead.producer import WorkAheadProducer
from epp.telemetry.counters import Telemetry
from tests.epp.config.test_go_plugins import plugin
from tests.epp.scheduling.endpoint_pools import config_of

HEAD = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}


def load(given: str | None) -> PickerConfig:
    return load_config(given, rng=random.Random(1), staleness=3.0)


def load_of(**sections: Any) -> PickerConfig:
    return load(yaml.safe_dump(HEAD | sections))


def fault(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_of(**sections)
    first = caught.value.problems[0]
    return f"{first.place}: {first.detail}" if first.place else first.detail


@pytest.mark.parametrize("given", [None, "", " \n"])
def test_the_default(given: str | None) -> None:
    config = load(given)
    profile = config.scheduler.profiles["default"]
    assert [(type(one.scorer), one.weight) for one in profile.scorers] == [(LeastCostScorer, 1)]
    assert [type(one) for one in profile.producers] == [WorkAheadProducer, PrecisePrefixCacheProducer]
    assert isinstance(profile.picker, MaxScorePicker)
    assert (profile.max_endpoints, profile.staleness, profile.filters) == (3, 3.0, ())
    assert config.detector == UtilizationDetector.model_construct(
        queue_depth_threshold=5, kv_cache_util_threshold=0.8, metrics_staleness_threshold=0.2
    )
    assert config.metrics is not None
    assert (config.passthrough, config.file_discovery, config.warnings) == (False, None, ())


def test_the_gateway_of_an_inference_pool_gets_one_address() -> None:
    """Some read no list."""
    for settings, choices in (Settings(pool_name="pool"), 1), (Settings(), 3):
        config = Configuration(settings, Telemetry()).config
        assert config.scheduler.profiles["default"].max_endpoints == choices
        assert (config.outliers, config.slow_start) == (OutlierSettings(), SlowStartSettings())


ORDINARY = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
featureGates:
- haPopulateNonLeaderDatastore
- flowControl=false
plugins:
- type: decode-filter
- name: queue
  type: queue-scorer
- type: kv-cache-utilization-scorer
- type: active-request-scorer
  parameters: {idleThreshold: 2, maxBusyScore: 0.5}
- type: weighted-random-picker
  parameters:
    maxNumOfEndpoints: 3
- type: single-profile-handler
- name: detector
  type: utilization-detector
  parameters: {queueDepthThreshold: 10, kvCacheUtilThreshold: 0.9, metricsStalenessThreshold: 1m30.5s}
- type: metrics-data-source
  parameters: {scheme: http, path: /stats, port: 9100, insecureSkipVerify: true, interval: 100ms}
- type: core-metrics-extractor
  parameters:
    defaultEngine: sglang
    engineConfigs:
    - {name: mine, queuedRequestsSpec: 'queue{kind="a"}', kvUsageSpec: 'kv{k=v}'}
- type: models-data-source
- type: models-data-extractor
- type: file-discovery
  parameters: {path: /etc/endpoints.yaml, watchFile: true}
- type: static-usage-limit-policy
- type: fcfs-ordering-policy
- type: global-strict-fairness-policy
- type: openai-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: decode-filter
  - pluginRef: queue
    weight: 2.5
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: weighted-random-picker
dataLayer:
  sources:
  - pluginRef: models-data-source
    extractors: [{pluginRef: models-data-extractor}]
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
  discovery: {pluginRef: file-discovery}
flowControl:
  maxBytes: 1Gi
  defaultRequestTTL: 60s
  priorityBands: [{priority: 1, maxRequests: 5}]
  saturationDetector: {pluginRef: detector}
requestHandler:
  parsers: [{pluginRef: openai-parser}, {pluginRef: passthrough-parser}]
parser:
"""


def test_an_ordinary_file_of_the_go_picker() -> None:
    config = load(ORDINARY)
    profile = config.scheduler.profiles["default"]
    assert profile.filters == (LabelFilter(ROLE_LABEL, DECODE_ROLES, unlabelled=True),)
    assert [one.weight for one in profile.scorers] == [2.5, 1.0]
    assert isinstance(profile.picker, WeightedRandomPicker)
    assert profile.max_endpoints == 3
    assert config.detector == UtilizationDetector.model_construct(
        queue_depth_threshold=10, kv_cache_util_threshold=0.9, metrics_staleness_threshold=90.5
    )
    assert config.metrics is not None
    assert config.metrics.interval == pytest.approx(0.1)
    assert (config.defaults.metrics_port, config.defaults.metrics_path) == (9100, "/stats")
    assert config.defaults.engine == "sglang"
    assert config.engines[0].name == "mine"
    assert config.engines[0].waiting[0].labels == {"kind": "a"}
    assert config.file_discovery is not None
    assert (config.file_discovery.path, config.file_discovery.watch_file) == ("/etc/endpoints.yaml", True)
    assert not config.passthrough
    assert len(config.warnings) == 2


def test_without_profiles_every_plugin_is_in_one() -> None:
    profile = load_of(
        plugins=[{"type": "active-request-scorer"}, {"type": "encode-filter"}]
    ).scheduler.profiles["default"]
    assert [one.scorer for one in profile.scorers] == [ActiveRequestScorer()]
    assert len(profile.filters) == 1
    assert isinstance(profile.picker, MaxScorePicker)
    assert profile.staleness is None, "nothing that is scraped is read"


def test_a_profile_without_a_picker_takes_the_one_that_is_there() -> None:
    plugins = [{"type": "weighted-random-picker", "parameters": {"maxNumOfEndpoints": 2}}]
    profile = load_of(plugins=plugins, schedulingProfiles=[{"name": "default"}]).scheduler.profiles["default"]
    assert isinstance(profile.picker, WeightedRandomPicker)
    assert profile.max_endpoints == 2


def test_a_detector_can_be_a_filter() -> None:
    plugins = [{"type": "utilization-detector", "parameters": {"headroom": 0.2}}, {"type": "queue-scorer"}]
    refs = [{"pluginRef": "utilization-detector"}, {"pluginRef": "queue-scorer"}]
    profile = load_of(
        plugins=plugins, schedulingProfiles=[{"name": "p", "plugins": refs}]
    ).scheduler.profiles["p"]
    assert profile.filters == (UtilizationDetector.model_construct(headroom=0.2),)


def test_a_label_selector() -> None:
    parameters = {
        "matchLabels": {"a": "b"},
        "matchExpressions": [{"key": "k", "operator": "In", "values": ["x"]}],
    }
    profile = load_of(
        plugins=[{"type": "label-selector-filter", "parameters": parameters}]
    ).scheduler.profiles["default"]
    assert profile.filters == (LabelSelectorFilter.model_validate(parameters),)


def test_without_a_metrics_source_nothing_is_scraped_only_if_that_is_said() -> None:
    assert load_of(dataLayer={}).metrics is not None
    assert load_of(dataLayer={"injectDefaults": False}).metrics is None


@pytest.mark.parametrize(
    ("parsers", "expected"),
    [(["passthrough-parser"], True), (["openai-parser", "passthrough-parser"], False), ([], False)],
)
def test_passthrough(parsers: list[str], expected: bool) -> None:
    assert (
        load_of(requestHandler={"parsers": [{"pluginRef": one} for one in parsers]}).passthrough is expected
    )
    if parsers == ["passthrough-parser"]:
        assert load_of(parser={"pluginRef": "passthrough-parser"}).passthrough


Q = {"type": "queue-scorer"}
FAULTS = """\
plugins[1].type: | 'quewe-scorer' is not a plugin | {plugins: [{type: queue-scorer}, {type: quewe-scorer}]}
plugins[0].type: | did you mean 'queue-scorer'? | {plugins: [{type: quewe-scorer}]}
plugins[0].type: | there are: active-request-scorer, | {plugins: [{type: zzz}]}
plugins[0].type: | use least-cost-scorer | {plugins: [{type: latency-scorer}]}
plugins[1].name: | already the name | {plugins: [{type: queue-scorer}, {type: queue-scorer}]}
plugins[0].type: | required | {plugins: [{name: q}]}
plugins[0]: | unknown field 'weight'; known: type, name, parameters | {plugins: [{type: queue-scorer, weight: 1}]}
plugins[0].parameters: | 'a' | {plugins: [{type: queue-scorer, parameters: {a: 1}}]}
plugins: | list | {plugins: {type: queue-scorer}}
plugins[0].parameters.maxNumOfEndpoints: | found 0 | {plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: 0}}]}
plugins[0].parameters.metricsStalenessThreshold: | duration | {plugins: [{type: utilization-detector, parameters: {metricsStalenessThreshold: 3 sec}}]}
plugins: core-metrics-extractor: | vllm | {plugins: [{type: core-metrics-extractor, parameters: {defaultEngine: x}}]}
plugins[0].parameters.path: | 'metrics' | {plugins: [{type: metrics-data-source, parameters: {path: metrics}}]}
plugins[0].parameters.matchExpressions[0].operator: | required | {plugins: [{type: label-selector-filter, parameters: {matchExpressions: [{key: k}]}}]}
plugins: | only one profile handler | {plugins: [{type: single-profile-handler, name: a}, {type: single-profile-handler, name: b}]}
schedulingProfiles[0]. | 'q' | {schedulingProfiles: [{name: p, plugins: [{pluginRef: q}]}]}
schedulingProfiles[0].plugins[0].pluginRef: | there are: queue-scorer | {plugins: [{type: queue-scorer}], schedulingProfiles: [{name: p, plugins: [{pluginRef: q}]}]}
schedulingProfiles[0].plugins[0].weight: | found -1 | {plugins: [{type: queue-scorer}], schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer, weight: -1}]}]}
schedulingProfiles[0].plugins[0].pluginRef: | expected a filter or scorer or picker | {plugins: [{type: openai-parser}], schedulingProfiles: [{name: p, plugins: [{pluginRef: openai-parser}]}]}
schedulingProfiles[0].plugins: | a profile has one picker | {plugins: [{type: max-score-picker}, {type: random-picker}], schedulingProfiles: [{name: p, plugins: [{pluginRef: max-score-picker}, {pluginRef: random-picker}]}]}
schedulingProfiles: | a, b | {schedulingProfiles: [{name: a}, {name: b}]}
featureGates[1]: | 'warp' | {featureGates: [flowControl=false, warp]}
featureGates[0]: | 'maybe' | {featureGates: [flowControl=maybe]}
dataLayer.discovery.pluginRef: | 'f' | {dataLayer: {discovery: {pluginRef: f}}}
dataLayer.sources[0]. | data source | {plugins: [{type: queue-scorer}], dataLayer: {sources: [{pluginRef: queue-scorer}]}}
flowControl.usageLimitPolicyPluginRef: | 'nope' | {flowControl: {usageLimitPolicyPluginRef: nope}}
flowControl.priorityBands[1].fairnessPolicyRef: | 'nope' | {flowControl: {priorityBands: [{priority: 1}, {priority: 2, fairnessPolicyRef: nope}]}}
flowControl.defaultPriorityBand.orderingPolicyRef: | 'nope' | {flowControl: {defaultPriorityBand: {orderingPolicyRef: nope}}}
flowControl.usageLimitPolicyPluginRef: | expected a usage limit policy | {plugins: [{type: queue-scorer}], flowControl: {usageLimitPolicyPluginRef: queue-scorer}}
plugins[0].parameters.path: | required | {plugins: [{type: file-discovery}]}
saturationDetector.pluginRef: | 'x' | {saturationDetector: {pluginRef: x}}
flowControl.saturationDetector.pluginRef: | 'x' | {flowControl: {saturationDetector: {pluginRef: x}}}
requestHandler.parsers[0].pluginRef: | 'x' | {requestHandler: {parsers: [{pluginRef: x}]}}
kind: | found 'InferencePool' | {kind: InferencePool}
apiVersion: | found 'v1' | {apiVersion: v1}
unknown field 'spec' | schedulingProfiles | {spec: {}}
"""
"""The place, what is said of it, and the sections of the file."""


@pytest.mark.parametrize("row", FAULTS.splitlines())
def test_faults_name_the_place(row: str) -> None:
    place, detail, sections = row.split(" | ")
    text = fault(**yaml.safe_load(sections))
    assert text.startswith(place)
    assert detail in text


def test_two_profiles_of_one_name() -> None:
    detail = "'a' is already the name of another profile"
    with pytest.raises(ConfigError, match=re.escape(f"schedulingProfiles[1].name: {detail}")):
        load_of(schedulingProfiles=[{"name": "a"}, {"name": "a"}])


FIELDS = ["plugins", "type", "name", "parameters", "pluginRef", "weight", "schedulingProfiles", "path"]
TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([*PLUGINS, *sorted(GO_ONLY)[:3]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=10,
)


@given(
    sections=st.dictionaries(st.sampled_from(["plugins", "schedulingProfiles", "dataLayer", "parser"]), TREE)
)
def test_any_document_is_loaded_or_refused(sections: dict[str, Any]) -> None:
    text = yaml.safe_dump(HEAD | sections)
    with contextlib.suppress(ConfigError):
        assert all(profile.picker for profile in load(text).scheduler.profiles.values())


def test_no_type_is_both_built_and_not() -> None:
    assert not GO_ONLY.keys() & PLUGINS.keys()


def test_what_stands_in_for_a_plugin_of_the_go_picker_is_there() -> None:
    for advice in set(GO_ONLY.values()):
        for name in re.findall(
            r"[a-z]+(?:-[a-z]+)*-(?:scorer|filter|detector|producer|parser|handler)", advice
        ):
            assert name in PLUGINS, advice


def test_a_decider_is_left_out_and_not_replaced() -> None:
    assert all(
        advice.startswith("leave it out") for name, advice in GO_ONLY.items() if name.endswith("-decider")
    )


@pytest.mark.parametrize("version", ["llm-d.ai/v1", "llm-d.ai/v1alpha1"])
def test_both_versions_of_the_document_are_the_same(version: str) -> None:
    text = yaml.safe_dump(HEAD | {"apiVersion": version, "plugins": [Q]})
    config = load(text)
    assert [one.scorer for one in config.scheduler.profiles["default"].scorers] == [QueueScorer()]
    assert config.warnings == ()


def source(**parameters: str) -> MetricsSourceParameters:
    metrics = load_of(plugins=[{"type": "metrics-data-source", "parameters": parameters}]).metrics
    assert metrics is not None
    return metrics


def test_tls_is_for_https_only(tmp_path: Path) -> None:
    assert source().tls() is None
    context = source(scheme="https").tls()
    assert context is not None
    assert not context.check_hostname
    with pytest.raises(OSError, match="No such file"):
        source(scheme="https", caCertPath=str(tmp_path / "ca")).tls()


def test_what_other_pickers_would_share_is_accepted_and_said_to_do_nothing() -> None:
    layer = {
        "peerDiscovery": {"pluginRef": "p"},
        "crossReplicaSyncerPluginRef": "s",
        "crossReplicaSyncInterval": "1s",
    }
    warnings = load_of(dataLayer=layer).warnings
    assert len(warnings) == 3
    assert all(f"dataLayer.{name} has no effect" in text for name, text in zip(layer, warnings, strict=True))


def test_policies_that_are_there_can_be_named() -> None:
    band = {"priority": 0, "orderingPolicyRef": "mine", "fairnessPolicyRef": "global-strict-fairness-policy"}
    flow = {"usageLimitPolicyPluginRef": "static-usage-limit-policy", "priorityBands": [band]}
    plugins = [{"type": "fcfs-ordering-policy", "name": "mine"}]
    assert load_of(plugins=plugins, flowControl=flow).warnings


def test_a_producer_of_the_go_picker_is_accepted() -> None:
    parameters = {"outputRatio": 1.5, "addEstimatedOutputTokens": True}
    assert load_of(plugins=[{"type": "inflight-load-producer", "parameters": parameters}]).scheduler.profiles[
        "default"
    ]


PREFIX = {"type": "prefix-cache-scorer"}


def test_a_prefix_scorer_brings_its_producer() -> None:
    profile = load_of(plugins=[Q, PREFIX]).scheduler.profiles["default"]
    (producer,) = profile.producers
    assert isinstance(producer, PrefixCacheProducer)
    assert (producer.block_tokens, producer.max_tokens, producer.capacity) == (64, 32_768, 7812)
    assert producer.auto_tune
    assert producer.index.max_bytes == (memory_limit() or 0) // 4
    assert [one.scorer for one in profile.scorers] == [QueueScorer(), PrefixCacheScorer(producer)]


def test_prefix_scorers_use_the_producer_that_is_there_or_that_they_name() -> None:
    parameters: dict[str, object] = {
        "blockSizeTokens": 128,
        "maxPrefixTokensToMatch": 0,
        "maxPrefixBlocksToMatch": 256,
    }
    parameters |= {"lruCapacityPerServer": 100, "maxIndexBytes": "1Gi"}
    mine = {"type": PRODUCER, "name": "mine", "parameters": parameters}
    (producer,) = load_of(plugins=[mine, PREFIX]).scheduler.profiles["default"].producers
    assert isinstance(producer, PrefixCacheProducer)
    assert (producer.block_tokens, producer.max_tokens, producer.max_blocks) == (128, 0, 256)
    assert (producer.capacity, producer.index.max_bytes) == (100, 1024**3)
    second = {"type": PRODUCER, "name": "second", "parameters": {"autoTune": False, "blockSize": 64}}
    given = {
        "prefixMatchInfoProducerName": "second",
        "matchLengthWeight": 0.8,
        "matchLengthScaleTokens": 16000,
    }
    profile = load_of(
        plugins=[mine, second, PREFIX, PREFIX | {"name": "long", "parameters": given}]
    ).scheduler.profiles["default"]
    first, long = (one.scorer for one in profile.scorers)
    assert isinstance(first, PrefixCacheScorer)
    assert isinstance(long, PrefixCacheScorer)
    assert list(profile.producers) == [first.producer, long.producer]
    assert first.producer is not long.producer
    assert isinstance(long.producer, PrefixCacheProducer)
    assert not long.producer.auto_tune
    assert (long.length_weight, long.length_scale) == (0.8, 16000)
    assert (
        len(load_of(plugins=[PREFIX, PREFIX | {"name": "again"}]).scheduler.profiles["default"].producers)
        == 1
    )


def test_a_producer_that_finds_no_prefixes_is_refused() -> None:
    named = PREFIX | {"parameters": {"prefixMatchInfoProducerName": "inflight-load-producer"}}
    assert "expected an approx-prefix-cache-producer" in fault(
        plugins=[named, {"type": "inflight-load-producer"}]
    )
    missing = PREFIX | {"parameters": {"prefixMatchInfoProducerName": "nobody"}}
    assert "'nobody'" in fault(plugins=[missing])


@pytest.mark.parametrize(
    ("older", "newer"),
    [("hashBlockSize", "blockSizeTokens"), ("lruCapacityPerServer", "lruCapacityPerServer")],
)
def test_what_the_scorer_was_told_once_is_said_to_be_the_producer_s(older: str, newer: str) -> None:
    detail = fault(plugins=[PREFIX | {"parameters": {older: 64}}])
    assert detail.startswith("plugins[0].parameters: ")
    assert f"'{older}' is a parameter of the plugin approx-prefix-cache-producer, as {newer}" in detail


GO_DEFAULT = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: approx-prefix-cache-producer
- type: max-score-picker
- type: single-profile-handler
- type: metrics-data-source
- type: core-metrics-extractor
- type: utilization-detector
- type: static-usage-limit-policy
- type: fcfs-ordering-policy
- type: global-strict-fairness-policy
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
  - pluginRef: max-score-picker
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
flowControl:
  saturationDetector:
    pluginRef: utilization-detector
"""


def test_the_go_picker_s_default_decides_as_written() -> None:
    given, ours = load(GO_DEFAULT), load(None)
    theirs = [(type(one.scorer), one.weight) for one in given.scheduler.profiles["default"].scorers]
    assert theirs == [(QueueScorer, 2), (KvCacheUtilizationScorer, 2), (PrefixCacheScorer, 3)]
    assert [type(one) for one in given.scheduler.profiles["default"].producers] == [PrefixCacheProducer]
    assert given.detector == ours.detector
    assert given.warnings == ()


DETECTOR = {"saturationDetector": {"pluginRef": "concurrency-detector"}}


def test_a_filter_brings_the_producers_that_it_needs() -> None:
    config = config_of({"type": "prefix-cache-affinity-filter"})
    assert [type(one) for one in config.scheduler.producers] == [InFlightLoadProducer, PrefixCacheProducer]
    load_of, prefixes = config.scheduler.producers
    assert isinstance(load_of, InFlightLoadProducer)
    assert load_of.matches is prefixes, "what is held already does not count"
    always = config_of(plugin("prefix-cache-affinity-filter", maxTTFTPenaltyMs=0))
    assert [type(one) for one in always.scheduler.producers] == [PrefixCacheProducer]


def test_two_profiles_share_what_is_in_flight() -> None:
    refs = [{"pluginRef": "prefix-cache-affinity-filter"}, {"pluginRef": "token-load-scorer"}]
    config = config_of(
        {"type": "prefix-cache-affinity-filter"},
        {"type": "token-load-scorer"},
        {"type": "header-profile-handler"},
        schedulingProfiles=[{"name": name, "plugins": refs} for name in "ab"],
    )
    assert [type(one) for one in config.scheduler.producers] == [InFlightLoadProducer, PrefixCacheProducer]
    one, other = (profile.filters[0] for profile in config.scheduler.profiles.values())
    assert one is other
    assert isinstance(one, PrefixCacheAffinityFilter)


def test_a_detector_alone_brings_its_producer() -> None:
    config = config_of({"type": "queue-scorer"}, plugin("concurrency-detector"), flowControl=DETECTOR)
    assert isinstance(config.detector, ConcurrencyDetector)
    assert [type(one) for one in config.scheduler.producers] == [InFlightLoadProducer]
    config = config_of({"type": "queue-scorer"}, flowControl=DETECTOR)
    assert isinstance(config.detector, ConcurrencyDetector), "by the name of its type it need not be listed"


@pytest.mark.parametrize(
    ("parameters", "warned"),
    [({}, False), ({"estimate": {}}, False), ({"modelName": "m", "vllm": {"url": "http://v:8000"}}, True)],
)
def test_a_file_that_asks_for_real_tokens_is_told_that_there_are_none(
    parameters: dict[str, Any], *, warned: bool
) -> None:
    warnings = config_of({"type": "queue-scorer"}, plugin("token-producer", **parameters)).warnings
    assert [("4 bytes of a prompt count as one token" in one) for one in warnings] == [True] * warned


def test_without_known_prefixes_whole_prompts_count() -> None:
    [alone] = config_of({"type": "token-load-scorer"}).scheduler.producers
    assert isinstance(alone, InFlightLoadProducer)
    assert alone.matches is None
    listed = config_of(
        {"type": "token-load-scorer"}, {"type": "approx-prefix-cache-producer"}
    ).scheduler.producers
    [counted] = [one for one in listed if isinstance(one, InFlightLoadProducer)]
    assert isinstance(counted.matches, PrefixCacheProducer)
    assert counted.matches in listed, "it learns of every request"
