"""The sections of an `EndpointPickerConfig` as they stand in the file, with the strictness of the Go picker."""

import re
from collections import Counter
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from discovery.endpoints_file import yaml_problem
from epp.duration import parse_duration


class ConfigError(ValueError):
    """The configuration is not sound; the text names the place, what was found there and what could stand there."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.place = place


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_seconds)]
"""A duration as Go writes it ("200ms"); in seconds."""


class Section(BaseModel):
    """Part of a configuration: camelCase names, exact types, no field that is not known."""

    model_config = ConfigDict(strict=True, frozen=True, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_field(cls, given: object) -> object:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in given if isinstance(given, dict) else ():
            if name not in known:
                raise ValueError(f"unknown field {name!r}; known: {', '.join(known) or 'none'}")
        return given


class PluginSpec(Section):
    """`name` is the type's where it is absent."""

    type: str
    name: str = ""
    parameters: dict[str, Any] = {}


class Ref(Section):
    """A plugin by its name."""

    plugin_ref: str


class ProfilePlugin(Ref):
    """A plugin of a profile; the weight is for scorers."""

    weight: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)


class ProfileSpec(Section):
    """One scheduling profile."""

    name: str
    plugins: list[ProfilePlugin] = []


class SourceSpec(Ref):
    """A data source and who reads it."""

    extractors: list[Ref] = []


class DataLayer(Section):
    """Where numbers and endpoints come from."""

    inject_defaults: bool = True
    sources: list[SourceSpec] = []
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
    max_bytes: str | int | None = None
    max_requests: str | int | None = None
    fairness_policy_ref: str | None = None
    ordering_policy_ref: str | None = None


class FlowControl(Section):
    """Read for its saturation detector; the rest needs the gate flowControl."""

    max_bytes: str | int | None = None
    max_requests: str | int | None = None
    default_request_ttl: Duration | None = Field(default=None, alias="defaultRequestTTL")
    no_endpoint_request_ttl: Duration | None = Field(default=None, alias="noEndpointRequestTTL")
    default_priority_band: PriorityBand | None = None
    default_negative_priority_band: PriorityBand | None = None
    priority_bands: list[PriorityBand] = []
    usage_limit_policy_plugin_ref: str | None = None
    saturation_detector: DetectorRef | None = None
    enable_eviction: bool = False


class RequestHandler(Section):
    """How bodies are read."""

    parsers: list[Ref] = []


class Document(Section):
    """The file as it stands."""

    api_version: Literal["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = []
    plugins: list[PluginSpec] = []
    scheduling_profiles: list[ProfileSpec] = []
    data_layer: DataLayer = DataLayer()
    flow_control: FlowControl = FlowControl()
    request_handler: RequestHandler = RequestHandler()
    saturation_detector: DetectorRef | None = None
    parser: Ref | None = None


S = TypeVar("S", bound=Section)


def read_document(text: str) -> Document:
    """The file, YAML or JSON; raises ConfigError."""
    try:
        given = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader
        given = _without_nulls(given)
    except RecursionError as error:
        raise ConfigError("", "the configuration is nested too deeply, or contains itself") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError("", f"the configuration is not YAML: {yaml_problem(error)}") from error
    if not isinstance(given, dict):
        raise ConfigError("", "the configuration is not a mapping; expected kind: EndpointPickerConfig")
    return read_section(Document, given, "")


def read_section(section: type[S], given: Any, place: str) -> S:
    """`given` as that section; raises ConfigError with the place of the first fault."""
    try:
        return section.model_validate(_without_nulls(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = first["msg"].removeprefix("Value error, ")
        found = first["input"]
        if isinstance(found, str | int | float) and first["type"] != "value_error":
            problem += f", found {found!r}"
        raise ConfigError(_place(place, first["loc"]), problem) from error


class _Loader(yaml.SafeLoader):
    """YAML as Go reads it strictly: a key that stands twice is a fault, not the last one's victory; 1e1 is a number."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, count in Counter(keys).items():
            if count > 1:
                problem = f"the key {key!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node


# YAML 1.1, which yaml follows, wants a point and a sign of the exponent; YAML 1.2 and Go do not
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


def _without_nulls(given: Any) -> Any:
    """As Go decodes: null is absent."""
    if isinstance(given, dict):
        return {name: _without_nulls(value) for name, value in given.items() if value is not None}
    return [_without_nulls(value) for value in given] if isinstance(given, list) else given


def _place(start: str, path: tuple[int | str, ...]) -> str:
    place = start
    for part in path:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place
