"""The Go picker's own configuration file, `EndpointPickerConfig`, read strictly and turned into the parts of a picker.

Group llm-d.ai/v1alpha1, or the older inference.networking.x-k8s.io/v1alpha1. There is no other format.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic.alias_generators import to_camel

from epp.catalogue import PLUGINS, Role
from epp.config_document import (
    ConfigError,
    DataLayer,
    DetectorRef,
    Document,
    FlowControl,
    PriorityBand,
    ProfilePlugin,
    ProfileSpec,
    read_document,
)
from epp.endpoint_document import ENGINE_LABELS, EndpointDefaults
from epp.engines import ENGINES, Engine
from epp.parameters import (
    ExtractorParameters,
    FileDiscoveryParameters,
    MetricsSourceParameters,
    PickerParameters,
    PrefixProducerParameters,
    PrefixScorerParameters,
)
from epp.plugins import Plugin, Plugins, listed
from epp.saturation import SaturationDetector
from epp.scheduling.plugin import Scorer
from epp.scheduling.prefix import PRODUCER, PrefixCacheProducer, PrefixCacheScorer
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.standing import Weighted

DEFAULT_CONFIG: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: in-flight-scorer
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: in-flight-scorer, weight: 2}
  - {pluginRef: max-score-picker}
"""
"""What holds when no configuration is given: the Go picker's default profile, and what was sent since the pages were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerConfig:
    """What a configuration file says, checked and built.

    `metrics` None: nothing is scraped. `file_discovery`: the endpoints come from that file. `passthrough`: bodies are
    not looked into. `warnings`: what the file says that has no effect.
    """

    profile: SchedulerProfile
    detector: SaturationDetector
    metrics: MetricsSourceParameters | None
    defaults: EndpointDefaults
    engines: tuple[Engine, ...] = ENGINES
    file_discovery: FileDiscoveryParameters | None = None
    passthrough: bool = False
    warnings: tuple[str, ...] = ()


def load_config(text: str | None, *, rng: random.Random, staleness: float = 2.0) -> PickerConfig:
    """The parts that `text` describes, the default ones for None or an empty text; raises ConfigError.

    `staleness`: seconds after which an endpoint's numbers are no longer compared with others'.
    """
    document = read_document(text if text and text.strip() else DEFAULT_CONFIG)
    _check_gates(document.feature_gates)
    plugins = Plugins(document.plugins, rng)
    _check_policies(document.flow_control, plugins)
    extractor = plugins.first(ExtractorParameters) or ExtractorParameters()
    return PickerConfig(
        profile=_profile(document, plugins, staleness),
        detector=_detector(document, plugins),
        metrics=_metrics(document.data_layer, plugins),
        defaults=_defaults(plugins, extractor),
        engines=_engines(extractor),
        file_discovery=_file_discovery(document.data_layer, plugins),
        passthrough=_is_passthrough(document, plugins),
        warnings=tuple(_warnings(document)),
    )


def _check_gates(gates: list[str]) -> None:
    for index, gate in enumerate(gates):
        place = f"featureGates[{index}]"
        name, _, value = (part.strip() for part in gate.partition("="))
        if name not in _GATES:
            raise ConfigError(place, f"{name!r} is no feature gate; there are: {listed(_GATES)}")
        if value.lower() not in ("", "true", "false"):
            raise ConfigError(place, f"{value!r} is not true or false")
        if name == "flowControl" and value.lower() != "false":
            raise ConfigError(
                place, "flow control is not built here yet; remove it or write flowControl=false"
            )


def _check_policies(flow: FlowControl, plugins: Plugins) -> None:
    """Without the gate they have no effect, but a name that nothing has is a mistake all the same."""
    bands: list[tuple[str, PriorityBand | None]] = [
        ("defaultPriorityBand", flow.default_priority_band),
        ("defaultNegativePriorityBand", flow.default_negative_priority_band),
        *((f"priorityBands[{index}]", band) for index, band in enumerate(flow.priority_bands)),
    ]
    named = [("usageLimitPolicyPluginRef", flow.usage_limit_policy_plugin_ref)]
    for place, band in bands:
        if band is not None:
            named.append((f"{place}.fairnessPolicyRef", band.fairness_policy_ref))
            named.append((f"{place}.orderingPolicyRef", band.ordering_policy_ref))
    for place, name in named:
        if name:
            plugins.resolve(name, f"flowControl.{place}", Role.POLICY, default=True)


_GATES: Final = ("flowControl", "haPopulateNonLeaderDatastore")


def _profile(document: Document, plugins: Plugins, staleness: float) -> SchedulerProfile:
    profiles = document.scheduling_profiles
    if len(profiles) > 1:
        names = ", ".join(profile.name for profile in profiles)
        raise ConfigError(
            "schedulingProfiles", f"one profile is possible with single-profile-handler, found {names}"
        )
    if profiles:
        return _build_profile(profiles[0], plugins, staleness)
    all_of_them = [ProfilePlugin.model_validate({"pluginRef": name}) for name in plugins.names(*_SCHEDULING)]
    return _build_profile(ProfileSpec(name="default", plugins=all_of_them), plugins, staleness)


_SCHEDULING: Final = (Role.FILTER, Role.SCORER, Role.PICKER)


def _build_profile(spec: ProfileSpec, plugins: Plugins, staleness: float) -> SchedulerProfile:
    places = [f"schedulingProfiles[0].plugins[{index}].pluginRef" for index in range(len(spec.plugins))]
    used = [
        (plugins.resolve(one.plugin_ref, place, *_SCHEDULING), one.weight)
        for one, place in zip(spec.plugins, places, strict=True)
    ]
    scorers = [(plugin, weight) for plugin, weight in used if plugin.has(Role.SCORER)]
    producers = _Producers(plugins)
    picker = _picker(spec, [plugin for plugin, _ in used if plugin.has(Role.PICKER)], plugins)
    parameters = picker.parameters
    return SchedulerProfile(
        filters=tuple(plugin.built for plugin, _ in used if plugin.has(Role.FILTER)),
        scorers=tuple(
            Weighted(producers.scorer(plugin), 1.0 if weight is None else weight)
            for plugin, weight in scorers
        ),
        producers=tuple(producers.used),
        picker=picker.built,
        max_endpoints=parameters.max_num_of_endpoints if isinstance(parameters, PickerParameters) else 1,
        staleness=staleness if any(plugin.kind.scraped for plugin, _ in scorers) else None,
    )


class _Producers:
    """The data producers that scorers need: those that are named or there, else the default one."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.used: list[PrefixCacheProducer] = []

    def scorer(self, plugin: Plugin) -> Scorer:
        """The scorer of that plugin, beside its producer if it needs one."""
        given = plugin.parameters
        if not isinstance(given, PrefixScorerParameters):
            scorer: Scorer = plugin.built
            return scorer
        producer = self._producer(given.prefix_match_info_producer_name)
        return PrefixCacheScorer(producer, given.match_length_weight, given.match_length_scale_tokens)

    def _producer(self, name: str | None) -> PrefixCacheProducer:
        place = "plugins: prefix-cache-scorer: parameters.prefixMatchInfoProducerName"
        name = name or self._plugins.first_name(PrefixProducerParameters)
        if name is None and self.used:
            return self.used[0]
        found = self._plugins.resolve(name or PRODUCER, place, Role.PRODUCER, default=True).built
        if not isinstance(found, PrefixCacheProducer):
            raise ConfigError(place, f"{name!r} finds no prefixes, expected an {PRODUCER}")
        if found not in self.used:
            self.used.append(found)
        return found


def _picker(spec: ProfileSpec, pickers: list[Plugin], plugins: Plugins) -> Plugin:
    """The picker of the profile, else any that the file has, else the default one: as in the Go picker."""
    if len(pickers) > 1:
        raise ConfigError("schedulingProfiles[0].plugins", f"profile {spec.name!r} has more than one picker")
    if pickers:
        return pickers[0]
    name = next(plugins.names(Role.PICKER), "max-score-picker")
    return plugins.resolve(name, "schedulingProfiles[0]", Role.PICKER, default=True)


def _detector(document: Document, plugins: Plugins) -> SaturationDetector:
    new, old = document.flow_control.saturation_detector, document.saturation_detector
    place = "flowControl.saturationDetector" if new or not old else "saturationDetector"
    ref = (new or old or DetectorRef()).plugin_ref
    detector: SaturationDetector = plugins.resolve(
        ref, f"{place}.pluginRef", Role.DETECTOR, default=True
    ).built
    return detector


def _metrics(layer: DataLayer, plugins: Plugins) -> MetricsSourceParameters | None:
    for index, source in enumerate(layer.sources):
        place = f"dataLayer.sources[{index}]"
        found = plugins.resolve(source.plugin_ref, f"{place}.pluginRef", Role.SOURCE).parameters
        for number, extractor in enumerate(source.extractors):
            plugins.resolve(extractor.plugin_ref, f"{place}.extractors[{number}].pluginRef", Role.EXTRACTOR)
        if isinstance(found, MetricsSourceParameters):
            return found
    if not layer.inject_defaults:
        return None
    return plugins.first(MetricsSourceParameters) or MetricsSourceParameters()


def _defaults(plugins: Plugins, extractor: ExtractorParameters) -> EndpointDefaults:
    source = plugins.first(MetricsSourceParameters) or MetricsSourceParameters()
    labels = (extractor.engine_label_key, *ENGINE_LABELS[1:]) if extractor.engine_label_key else ENGINE_LABELS
    return EndpointDefaults(
        metrics_port=source.port,
        metrics_path=source.path,
        scheme=source.scheme,
        engine=extractor.default_engine,
        engine_labels=labels,
    )


def _engines(extractor: ExtractorParameters) -> tuple[Engine, ...]:
    own = [one.engine() for one in extractor.engine_configs]
    replaced = {engine.name for engine in own}
    engines = (*own, *(engine for engine in ENGINES if engine.name not in replaced))
    names = [engine.name for engine in engines]
    if extractor.default_engine is not None and extractor.default_engine not in names:
        problem = f"defaultEngine {extractor.default_engine!r} is not one of {', '.join(names)}"
        raise ConfigError("plugins: core-metrics-extractor", problem)
    return engines


def _file_discovery(layer: DataLayer, plugins: Plugins) -> FileDiscoveryParameters | None:
    if layer.discovery is None:
        return None
    found = plugins.resolve(layer.discovery.plugin_ref, "dataLayer.discovery.pluginRef", Role.DISCOVERY)
    return found.parameters if isinstance(found.parameters, FileDiscoveryParameters) else None


def _is_passthrough(document: Document, plugins: Plugins) -> bool:
    listed = [(ref, f"requestHandler.parsers[{i}]") for i, ref in enumerate(document.request_handler.parsers)]
    if not listed and document.parser is not None:
        listed = [(document.parser, "parser")]
    found = [
        plugins.resolve(ref.plugin_ref, f"{place}.pluginRef", Role.PARSER, default=True)
        for ref, place in listed
    ]
    return bool(found) and all(plugin.kind is PLUGINS["passthrough-parser"] for plugin in found)


def _warnings(document: Document) -> Iterator[str]:
    if document.api_version != "llm-d.ai/v1alpha1":
        yield f"apiVersion {document.api_version} is the older name of llm-d.ai/v1alpha1"
    if document.flow_control.model_fields_set - {"saturation_detector"}:
        yield "flowControl has no effect without the feature gate, except for its saturationDetector"
    for name in ("peer_discovery", "cross_replica_syncer_plugin_ref", "cross_replica_sync_interval"):
        if getattr(document.data_layer, name) is not None:
            yield f"dataLayer.{to_camel(name)} has no effect: a picker keeps nothing that others would need"
    for name, newer in (
        ("saturation_detector", "flowControl.saturationDetector"),
        ("parser", "requestHandler.parsers"),
    ):
        if getattr(document, name) is not None:
            yield f"the top-level {to_camel(name)} is the older place of {newer}"
