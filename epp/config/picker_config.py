"""Reads the Go picker's configuration file, `EndpointPickerConfig`, and builds the parts of a picker from it.

Versions llm-d.ai/v1 and v1alpha1, and the older inference.networking.x-k8s.io/v1alpha1. There is no other format.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel

from adsum.config.problems import ConfigError, Problems, did_you_mean
from adsum.config.yaml_document import YamlDocument, parse_yaml, without_null_fields
from epp.config.data_layer import (
    PASSTHROUGH_PARSER,
    ExtractorParameters,
    FileDiscoveryParameters,
    MetricsSourceParameters,
    ModelsSourceParameters,
)
from epp.config.document import (
    ConfigDocument,
    DataLayer,
    DetectorRef,
    ProfileSpec,
    read_document,
)
from epp.config.flow_control import (
    GATE,
    detector_warnings,
    flow_control_steps,
    flow_control_warnings,
    gates_of,
    read_flow_control,
)
from epp.config.plugins import Plugins
from epp.config.scheduler import profile_specs, read_scheduler
from epp.endpoints.endpoint_document import ENGINE_LABELS, EndpointDefaults
from epp.endpoints.worker_metrics import WorkerMetric
from epp.ext_proc.exchange_settings import ResponseHeaders
from epp.flow_control.settings import FlowControlSettings
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings
from epp.plugins.declaration import Role
from epp.scheduling.pick import Pick
from epp.scheduling.plugin import IdentityHeaders
from epp.scheduling.saturation import SaturationDetector
from epp.scheduling.scheduler import Scheduler
from epp.scraping.engines import ENGINES, Engine

DEFAULT_CONFIG: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-producer
  parameters: {optional: true}
- type: least-cost-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
- type: least-cost-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: least-cost-scorer}
  - {pluginRef: max-score-picker}
outlierDetection: {}
slowStart: {}
"""
"""The default: where a request costs least (docs/routing.md), on two workers where they have roles, without workers that fail
(docs/failing-workers.md).

A file is not completed by it: it decides as written, as with the Go picker.
"""
CONFIG_OF_POOL: Final = DEFAULT_CONFIG.replace("maxNumOfEndpoints: 3", "maxNumOfEndpoints: 1")
"""The same where an InferencePool names the picker: its gateway is another project's, and some read one address, of a list
none (https://github.com/agentgateway/agentgateway/issues/1444, and Envoy's ORIGINAL_DST in Envoy AI Gateway)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerConfig:
    """The parts of a picker that a configuration file describes.

    `metrics` None: nothing is scraped. `models` None: workers are asked for their models as usual. `file_discovery`: the file
    that lists the endpoints. `passthrough`: bodies are not parsed. `plugins`: all of the file. `attributes`: the numbers that
    pages are also read for. `response_headers`: sets headers of answers, None if no plugin does. `fairness_headers`: where a
    request's fairness id may stand besides its own headers. `flow_control`: None: requests do not wait. `outliers` None: no
    endpoint is ejected; `slow_start` None: new ones are as all others. `steps`: what happens to a request, for people.
    `warnings`: fields of the file without effect.
    """

    scheduler: Scheduler
    detector: SaturationDetector
    detector_name: str
    metrics: MetricsSourceParameters | None
    defaults: EndpointDefaults
    plugins: Plugins
    models: ModelsSourceParameters | None = None
    engines: tuple[Engine, ...] = ENGINES
    file_discovery: FileDiscoveryParameters | None = None
    passthrough: bool = False
    attributes: tuple[WorkerMetric, ...] = ()
    response_headers: ResponseHeaders | None = None
    fairness_headers: tuple[str, ...] = ()
    flow_control: FlowControlSettings | None = None
    outliers: OutlierSettings | None = None
    slow_start: SlowStartSettings | None = None
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def needs_answers(self, *, usage_metrics: bool) -> tuple[str, ...]:
        """Features that work only where an ext_proc stream lasts until the answer."""
        needed = {
            "headers of answers, such as session tokens": self.response_headers is not None,
            "eviction": self.flow_control is not None and self.flow_control.eviction,
            "--usage-metrics": usage_metrics,
        }
        return tuple(name for name, needs in needed.items() if needs)


def load_config(
    text: str | None, *, rng: random.Random, staleness: float = 2.0, before: Plugins | None = None
) -> PickerConfig:
    """Build the parts that `text` describes, DEFAULT_CONFIG if it is None or empty; raises ConfigError with all problems.

    `staleness` and `before`: see `build_config`.
    """
    return build_config(parse_config(text), rng=rng, staleness=staleness, before=before)


class ParsedConfig(NamedTuple):
    """A document, with its problems so far: `build_config` finds the others, so that one error reports all."""

    written: YamlDocument
    document: ConfigDocument
    problems: Problems


def parse_config(text: str | None) -> ParsedConfig:
    """Raises ConfigError for what is no document. It touches nothing else, so a thread may call it: a large file takes long."""
    return parse_document(parse_yaml(text if text and text.strip() else DEFAULT_CONFIG))


def parse_document(parsed: YamlDocument) -> ParsedConfig:
    """The same of what is parsed as YAML."""
    written = without_null_fields(parsed, "kind: EndpointPickerConfig")
    problems = Problems()
    problems.of(lambda: _check_lengths("", written.given))
    if problems:
        raise problems.error(written.line, written.text)
    return ParsedConfig(written, read_document(written.given, problems), problems)


_MAX_LISTED: Final = 1000
"""Elements of a list, and keys of a mapping: to build so many plugins takes about .3 s on the event loop."""


def _check_lengths(place: str, given: Any) -> None:
    if not isinstance(given, list | dict):
        return
    if len(given) > _MAX_LISTED:
        raise ConfigError(place, f"has {len(given):,} elements; expected at most {_MAX_LISTED:,}")
    if isinstance(given, dict):
        for name, value in given.items():
            _check_lengths(f"{place}.{name}" if place else str(name), value)
    else:
        for index, value in enumerate(given):
            _check_lengths(f"{place}[{index}]", value)


def build_config(
    parsed: ParsedConfig,
    *,
    rng: random.Random,
    staleness: float = 2.0,
    before: Plugins | None = None,
    processes: int = 1,
) -> PickerConfig:
    """Build the parts of a picker; raises ConfigError with all problems.

    `staleness`: seconds after which an endpoint's numbers are no longer compared with others'. `before`: the plugins in
    force, which are kept if they are the same. `processes`: of the picker, each with its own plugins.
    """
    written, document, problems = parsed
    plugins = Plugins(document.plugins, rng, problems, before, processes)
    extractor = plugins.first_parameters(ExtractorParameters) or ExtractorParameters()
    specs = _build_listed(document, plugins, extractor)
    flow_control = _flow_control(document, plugins, problems)
    detector = problems.of(partial(_detector, document, plugins))
    built = read_scheduler(specs, plugins, staleness, problems, flow_control=flow_control is not None)
    metrics = _metrics(document.data_layer, plugins, problems)
    engines = problems.of(partial(_engines, extractor, plugins.attributes))
    file_discovery = problems.of(partial(_file_discovery, document.data_layer, plugins))
    passthrough = _is_passthrough(document, plugins, problems)
    if problems or built is None or detector is None or engines is None:
        raise problems.error(written.line, written.text)
    plugins.forget_kept()
    outliers, slow_start = document.outlier_detection, document.slow_start
    waits = flow_control_steps(document.flow_control, flow_control, detector.built, detector.name)
    return PickerConfig(
        scheduler=built.scheduler,
        detector=detector.built,
        detector_name=detector.name,
        metrics=metrics,
        defaults=_defaults(plugins, extractor),
        plugins=plugins,
        models=plugins.first_parameters(ModelsSourceParameters),
        engines=engines,
        file_discovery=file_discovery,
        passthrough=passthrough,
        attributes=tuple(plugins.attributes.values()),
        response_headers=_all_headers(plugins.response_headers()),
        fairness_headers=_fairness_headers(plugins),
        flow_control=flow_control,
        outliers=outliers,
        slow_start=slow_start,
        steps=(*waits, *_outlier_steps(outliers, slow_start), *built.steps),
        warnings=(
            *_warnings(document, plugins, detector, flow_control=flow_control is not None),
            *plugins.unread_warnings(built.scheduler.producers),
        ),
    )


def _build_listed(
    document: ConfigDocument, plugins: Plugins, extractor: ExtractorParameters
) -> Sequence[ProfileSpec]:
    """Tell the plugins of the file's numbers and profiles, and build those that work by being listed."""
    specs = profile_specs(document, plugins)
    # the same objects, which the columns of the datastore are found by
    plugins.attributes = plugins.shared(None, WorkerMetric, extractor.attribute_keys, extractor.attributes)
    plugins.profiles = tuple(spec.name for spec in specs)
    plugins.build_listed()
    return specs


def _flow_control(
    document: ConfigDocument, plugins: Plugins, problems: Problems
) -> FlowControlSettings | None:
    """None: its gate is off; its problems are found all the same."""
    is_on = gates_of(document, problems).get(GATE)
    settings = read_flow_control(document.flow_control, plugins, problems)
    return settings if is_on else None


class _Detector(NamedTuple):
    name: str
    built: SaturationDetector


def _detector(document: ConfigDocument, plugins: Plugins) -> _Detector:
    new, old = document.flow_control.saturation_detector, document.saturation_detector
    place = "flowControl.saturationDetector" if new or not old else "saturationDetector"
    ref = (new or old or DetectorRef()).plugin_ref
    found = plugins.resolve(ref, f"{place}.pluginRef", Role.DETECTOR, default=True)
    return _Detector(ref, plugins.build(found))


def _metrics(layer: DataLayer, plugins: Plugins, problems: Problems) -> MetricsSourceParameters | None:
    sources = []
    for index, source in enumerate(layer.sources):
        place = f"dataLayer.sources[{index}]"
        resolve = partial(plugins.resolve, source.plugin_ref, f"{place}.pluginRef", Role.SOURCE)
        if (found := problems.of(resolve)) is not None:
            sources.append(found.parameters)
        for number, extractor in enumerate(source.extractors):
            where = f"{place}.extractors[{number}].pluginRef"
            problems.of(partial(plugins.resolve, extractor.plugin_ref, where, Role.EXTRACTOR))
    for parameters in sources:
        if isinstance(parameters, MetricsSourceParameters):
            return parameters
    if not layer.inject_defaults:
        return None
    return plugins.first_parameters(MetricsSourceParameters) or MetricsSourceParameters()


def _defaults(plugins: Plugins, extractor: ExtractorParameters) -> EndpointDefaults:
    source = plugins.first_parameters(MetricsSourceParameters) or MetricsSourceParameters()
    labels = (extractor.engine_label_key, *ENGINE_LABELS[1:]) if extractor.engine_label_key else ENGINE_LABELS
    return EndpointDefaults(
        metrics_port=source.port,
        metrics_path=source.path,
        scheme=source.scheme,
        engine=extractor.default_engine,
        engine_labels=labels,
    )


def _fairness_headers(plugins: Plugins) -> tuple[str, ...]:
    found = [one for one in plugins.of_role(Role.REQUEST_HEADERS) if isinstance(one, IdentityHeaders)]
    return tuple(found[0].headers) if found else ()


def _all_headers(setters: Sequence[ResponseHeaders]) -> ResponseHeaders | None:
    if len(setters) <= 1:
        return setters[0] if setters else None

    def headers_of(pick: Pick, served: str | None) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        for one in setters:
            headers |= one(pick, served)
        return headers

    return headers_of


def _engines(extractor: ExtractorParameters, attributes: Mapping[str, WorkerMetric]) -> tuple[Engine, ...]:
    own = [one.engine(attributes) for one in extractor.engine_configs]
    replaced = {engine.name for engine in own}
    engines = (*own, *(engine for engine in ENGINES if engine.name not in replaced))
    names = [engine.name for engine in engines]
    if extractor.default_engine is not None and extractor.default_engine not in names:
        problem = (
            f"{extractor.default_engine!r} is not an engine; {did_you_mean(extractor.default_engine, names)}"
        )
        raise ConfigError("plugins: core-metrics-extractor: parameters.defaultEngine", problem)
    return engines


def _file_discovery(layer: DataLayer, plugins: Plugins) -> FileDiscoveryParameters | None:
    if layer.discovery is None:
        return None
    found = plugins.resolve(layer.discovery.plugin_ref, "dataLayer.discovery.pluginRef", Role.DISCOVERY)
    return found.parameters if isinstance(found.parameters, FileDiscoveryParameters) else None


def _is_passthrough(document: ConfigDocument, plugins: Plugins, problems: Problems) -> bool:
    listed = [(ref, f"requestHandler.parsers[{i}]") for i, ref in enumerate(document.request_handler.parsers)]
    if not listed and document.parser is not None:
        listed = [(document.parser, "parser")]
    found = [
        problems.of(partial(plugins.resolve, ref.plugin_ref, f"{place}.pluginRef", Role.PARSER, default=True))
        for ref, place in listed
    ]
    return bool(found) and all(plugin and plugin.type == PASSTHROUGH_PARSER.type for plugin in found)


def _warnings(
    document: ConfigDocument, plugins: Plugins, detector: _Detector, *, flow_control: bool
) -> Iterator[str]:
    if not document.api_version.startswith("llm-d.ai/"):
        yield f"apiVersion {document.api_version} is an older name; use llm-d.ai/v1alpha1"
    yield from plugins.warnings()
    yield from flow_control_warnings(document.flow_control, plugins, on=flow_control)
    for name in ("peer_discovery", "cross_replica_syncer_plugin_ref", "cross_replica_sync_interval"):
        if getattr(document.data_layer, name) is not None:
            yield f"dataLayer.{to_camel(name)} has no effect: pickers find each other with --peers"
    for name, newer in (
        ("saturation_detector", "flowControl.saturationDetector"),
        ("parser", "requestHandler.parsers"),
    ):
        if getattr(document, name) is not None:
            yield f"the top-level {to_camel(name)} is an older field; use {newer}"
    yield from detector_warnings(detector.built, detector.name)


def _outlier_steps(outliers: OutlierSettings | None, slow_start: SlowStartSettings | None) -> Iterator[str]:
    if outliers is not None:
        first, longest = outliers.base_ejection_time, outliers.longest_ejection
        yield (
            f"outlier detection: an endpoint that fails is ejected for {first:g} to {longest:g} s, "
            f"at most {outliers.max_ejection_percent:g} % of the pool at once"
        )
    if slow_start is not None:
        yield f"slow start: a new endpoint gets its full share after {slow_start.window:g} s"
