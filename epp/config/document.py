"""The schema of an `EndpointPickerConfig`: its sections, as strict as the Go picker (unknown fields are errors)."""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings
from runtime.config import sections
from runtime.config.problems import Problems
from runtime.config.sections import ConfigSection, parsed_by
from runtime.config.yaml_document import without_nulls
from runtime.durations import parse_go_duration
from runtime.sizes import parse_quantity

Duration = Annotated[float, parsed_by(parse_go_duration)]
"""A duration in Go's syntax ("200ms"), in seconds."""
Wait = Annotated[Duration, Field(ge=0.0, allow_inf_nan=False)]
"""The most that something may take; 0: no limit."""
Limit = Annotated[int, Field(ge=1, lt=2**63)]
"""A number of requests or tokens; as in Go, an int64."""
Headroom = Annotated[float, Field(ge=0.0, le=1_000_000.0)]
"""The share of a limit that a filter allows beyond it."""
Quantity = Annotated[int, parsed_by(parse_quantity), Field(ge=0)]
"""A Kubernetes quantity ("1Gi", 5000)."""


class Section(ConfigSection):
    """A part of an EndpointPickerConfig; its fields are camelCase in the file."""

    model_config = ConfigDict(alias_generator=to_camel)


class PluginSpec(Section):
    """`name`: empty means the type's name."""

    type: str = Field(min_length=1)
    name: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class Ref(Section):
    """A reference to a plugin by its name."""

    plugin_ref: str = Field(min_length=1)


class ProfilePlugin(Ref):
    """A plugin of a profile; only scorers have a weight."""

    weight: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)


class ProfileSpec(Section):
    name: str
    plugins: list[ProfilePlugin] = Field(default_factory=list)


class SourceSpec(Ref):
    """A data source and its extractors."""

    extractors: list[Ref] = Field(default_factory=list)


class DataLayer(Section):
    """The sources of metrics and of endpoints."""

    inject_defaults: bool = True
    sources: list[SourceSpec] = Field(default_factory=list)
    discovery: Ref | None = None
    peer_discovery: Ref | None = None
    cross_replica_syncer_plugin_ref: str | None = None
    cross_replica_sync_interval: Duration | None = None


class DetectorRef(Section):
    plugin_ref: str = "utilization-detector"


class PriorityBandSection(Section):
    """What may wait at one priority. A limit of 0 is the default; the defaults of bands need no `priority`."""

    priority: int = Field(default=0, ge=-(2**63), lt=2**63)
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: str | None = None
    ordering_policy_ref: str | None = None


class FlowControl(Section):
    """Without the feature gate flowControl only `saturation_detector` has an effect."""

    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    default_request_ttl: Wait | None = Field(default=None, alias="defaultRequestTTL")
    no_endpoint_request_ttl: Wait | None = Field(default=None, alias="noEndpointRequestTTL")
    default_priority_band: PriorityBandSection | None = None
    default_negative_priority_band: PriorityBandSection | None = None
    priority_bands: list[PriorityBandSection] = Field(default_factory=list)
    usage_limit_policy_plugin_ref: str | None = None
    saturation_detector: DetectorRef | None = None
    enable_eviction: bool = False


class RequestHandler(Section):
    """The parsers of request bodies."""

    parsers: list[Ref] = Field(default_factory=list)


_DEFAULTS: Final = OutlierSettings()
_PROBE_PATH: Final = re.compile(r"(?:/[!-~]{0,1023})?")
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Pause = Annotated[Duration, Field(ge=0.1, le=86_400)]
"""A time after which something happens, in seconds."""
_SLOW_START: Final = SlowStartSettings()


class OutlierDetectionSection(Section):
    """Names and defaults of Envoy's outlier detection, with those of `OutlierSettings` where they differ."""

    consecutive_5xx: Count = Field(default=_DEFAULTS.consecutive_5xx, alias="consecutive5xx")
    consecutive_local_origin_failure: Count = _DEFAULTS.consecutive_local_origin_failure
    failure_percentage_threshold: Percent = _DEFAULTS.failure_percentage_threshold
    failure_percentage_minimum_hosts: Count = _DEFAULTS.failure_percentage_minimum_hosts
    failure_percentage_request_volume: Count = _DEFAULTS.failure_percentage_request_volume
    interval: Pause = _DEFAULTS.interval
    base_ejection_time: Pause = _DEFAULTS.base_ejection_time
    max_ejection_time: Pause | None = None
    max_ejection_percent: Percent = _DEFAULTS.max_ejection_percent
    stall_timeout: Annotated[Duration, Field(ge=0, le=86400.0)] = _DEFAULTS.stall_timeout
    suspect_timeout: Annotated[Duration, Field(ge=0, le=86_400)] = _DEFAULTS.suspect_timeout
    stalled_requests: Annotated[Count, Field(ge=1)] = _DEFAULTS.stalled_requests
    probe_path: str = _DEFAULTS.probe_path
    probe_timeout: Pause = _DEFAULTS.probe_timeout

    @field_validator("probe_path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if not _PROBE_PATH.fullmatch(path):
            raise ValueError(
                "expected a path such as /health, at most 1,024 visible ASCII characters, or nothing"
            )
        return path

    @model_validator(mode="after")
    def _check_times(self) -> "OutlierDetectionSection":
        if self.max_ejection_time is not None and self.max_ejection_time < self.base_ejection_time:
            raise ValueError(
                "maxEjectionTime is shorter than baseEjectionTime; expected at least as long, or none"
            )
        return self

    def settings(self) -> OutlierSettings:
        """Envoy too has the base as the longest time if that is longer than the default."""
        given = self.model_dump()
        if self.max_ejection_time is None:
            given["max_ejection_time"] = max(_DEFAULTS.max_ejection_time, self.base_ejection_time)
        return OutlierSettings(**given)


class SlowStartSection(Section):
    """Names and defaults of Envoy's slow start; its window has a default here."""

    window: Pause = _SLOW_START.window
    aggression: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = _SLOW_START.aggression
    min_weight_percent: Percent = _SLOW_START.min_weight_percent

    def settings(self) -> SlowStartSettings:
        return SlowStartSettings(**self.model_dump())


API_VERSION: Final = "llm-d.ai/v1"
KIND: Final = "EndpointPickerConfig"


class ConfigDocument(Section):
    """The whole file, before plugins are built."""

    api_version: Literal["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = Field(default_factory=list)
    plugins: list[PluginSpec] = Field(default_factory=list)
    scheduling_profiles: list[ProfileSpec] = Field(default_factory=list)
    data_layer: DataLayer = DataLayer()
    flow_control: FlowControl = FlowControl()
    request_handler: RequestHandler = RequestHandler()
    outlier_detection: OutlierDetectionSection | None = None
    slow_start: SlowStartSection | None = None
    saturation_detector: DetectorRef | None = None
    parser: Ref | None = None


S = TypeVar("S", bound=Section)


def read_document(given: dict[str, Any], problems: Problems) -> ConfigDocument:
    """Read the file as far as possible. Problems are added, and invalid parts replaced by placeholders.

    So later checks still run, and one run reports all problems.
    """
    document = problems.of(lambda: read_section(ConfigDocument, given, ""))
    return document or ConfigDocument.model_validate(_usable(given))


def _usable(given: dict[str, Any]) -> dict[str, Any]:
    """The valid sections. Elements of lists are checked one by one; a placeholder keeps the index of an invalid one."""
    fields = {field.alias or name: field for name, field in ConfigDocument.model_fields.items()}
    usable: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    for name in given.keys() & fields.keys() - usable.keys():
        value = given[name]
        if name == "plugins" and isinstance(value, list):
            usable[name] = [_is_section(PluginSpec, one) or _broken_plugin(one) for one in value]
        elif name == "schedulingProfiles" and isinstance(value, list):
            usable[name] = [_is_section(ProfileSpec, one) or _broken_profile(one) for one in value]
        else:
            alone = usable | {name: value}
            usable = alone if _is_section(ConfigDocument, alone) else usable
    return usable


def _is_section(section: type[S], given: Any) -> S | None:
    return Problems().of(lambda: read_section(section, given, ""))


def _broken_plugin(given: Any) -> PluginSpec:
    """A placeholder with the name but no type, so that references to it are no further errors."""
    fields = given if isinstance(given, dict) else {}
    names = (fields.get("name"), fields.get("type"))
    name = next((one for one in names if isinstance(one, str) and one), "")
    return PluginSpec.model_construct(type="", name=name, parameters={})


def _broken_profile(given: Any) -> ProfileSpec:
    """A placeholder with the valid plugin references; the others have no name."""
    fields = given if isinstance(given, dict) else {}
    plugins = fields.get("plugins")
    broken = ProfilePlugin.model_construct(plugin_ref="", weight=None)
    used = [
        _is_section(ProfilePlugin, one) or broken for one in (plugins if isinstance(plugins, list) else ())
    ]
    return ProfileSpec.model_construct(name=str(fields.get("name", "")), plugins=used)


def read_section(section: type[S], given: Any, place: str) -> S:
    """Validate `given`; raises ConfigError with all its problems."""
    return sections.read_section(section, without_nulls(given), place)
