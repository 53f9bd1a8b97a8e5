"""The sections of an `EndpointPickerConfig` as they stand in the file, with the strictness of the Go picker."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from runtime.config import sections
from runtime.config.problems import Problems
from runtime.config.sections import ConfigSection, parsed_by
from runtime.config.yaml_document import without_nulls
from runtime.durations import parse_go_duration
from runtime.sizes import parse_quantity

Duration = Annotated[float, parsed_by(parse_go_duration)]
"""A duration as Go writes it ("200ms"); in seconds."""
Quantity = Annotated[int, parsed_by(parse_quantity), Field(ge=0)]
"""A number as Kubernetes writes it ("1Gi", 5000)."""


class Section(ConfigSection):
    """Part of an EndpointPickerConfig: camelCase names."""

    model_config = ConfigDict(alias_generator=to_camel)


class PluginSpec(Section):
    """`name` is the type's where it is absent."""

    type: str = Field(min_length=1)
    name: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class Ref(Section):
    """A plugin by its name."""

    plugin_ref: str = Field(min_length=1)


class ProfilePlugin(Ref):
    """A plugin of a profile; the weight is for scorers."""

    weight: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)


class ProfileSpec(Section):
    name: str
    plugins: list[ProfilePlugin] = Field(default_factory=list)


class SourceSpec(Ref):
    """A data source and who reads it."""

    extractors: list[Ref] = Field(default_factory=list)


class DataLayer(Section):
    """Where numbers and endpoints come from."""

    inject_defaults: bool = True
    sources: list[SourceSpec] = Field(default_factory=list)
    discovery: Ref | None = None
    peer_discovery: Ref | None = None
    cross_replica_syncer_plugin_ref: str | None = None
    cross_replica_sync_interval: Duration | None = None


class DetectorRef(Section):
    """The saturation detector; the default one where it is absent."""

    plugin_ref: str = "utilization-detector"


class PriorityBand(Section):
    """Limits of one priority."""

    priority: int = 0
    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    fairness_policy_ref: str | None = None
    ordering_policy_ref: str | None = None


class FlowControl(Section):
    """Read for its saturation detector; the rest needs the gate flowControl."""

    max_bytes: Quantity | None = None
    max_requests: Quantity | None = None
    default_request_ttl: Duration | None = Field(default=None, alias="defaultRequestTTL")
    no_endpoint_request_ttl: Duration | None = Field(default=None, alias="noEndpointRequestTTL")
    default_priority_band: PriorityBand | None = None
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: list[PriorityBand] = Field(default_factory=list)
    usage_limit_policy_plugin_ref: str | None = None
    saturation_detector: DetectorRef | None = None
    enable_eviction: bool = False


class RequestHandler(Section):
    """How bodies are read."""

    parsers: list[Ref] = Field(default_factory=list)


class ConfigDocument(Section):
    """The file as it stands."""

    api_version: Literal["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = Field(default_factory=list)
    plugins: list[PluginSpec] = Field(default_factory=list)
    scheduling_profiles: list[ProfileSpec] = Field(default_factory=list)
    data_layer: DataLayer = DataLayer()
    flow_control: FlowControl = FlowControl()
    request_handler: RequestHandler = RequestHandler()
    saturation_detector: DetectorRef | None = None
    parser: Ref | None = None


S = TypeVar("S", bound=Section)


def read_document(given: dict[str, Any], problems: Problems) -> ConfigDocument:
    """The file as far as it can be read; what cannot is told, and stands there as nothing that can be used."""
    document = problems.of(lambda: read_section(ConfigDocument, given, ""))
    return document or ConfigDocument.model_validate(_usable(given))


def _usable(given: dict[str, Any]) -> dict[str, Any]:
    """The sections that can be read. Of lists each element counts by itself: one that is broken keeps its place."""
    fields = {field.alias or name: field for name, field in ConfigDocument.model_fields.items()}
    usable: dict[str, Any] = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
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
    """One without a type; its name is known, so that who refers to it is not told that there is none."""
    told = given if isinstance(given, dict) else {}
    names = (told.get("name"), told.get("type"))
    name = next((one for one in names if isinstance(one, str) and one), "")
    return PluginSpec.model_construct(type="", name=name, parameters={})


def _broken_profile(given: Any) -> ProfileSpec:
    """One whose plugins can be looked at as far as they can be read; those that cannot have no name."""
    told = given if isinstance(given, dict) else {}
    plugins = told.get("plugins")
    broken = ProfilePlugin.model_construct(plugin_ref="", weight=None)
    used = [
        _is_section(ProfilePlugin, one) or broken for one in (plugins if isinstance(plugins, list) else ())
    ]
    return ProfileSpec.model_construct(name=str(told.get("name", "")), plugins=used)


def read_section(section: type[S], given: Any, place: str) -> S:
    """`given` as that section; raises ConfigError with all that is wrong with it."""
    return sections.read_section(section, without_nulls(given), place)
