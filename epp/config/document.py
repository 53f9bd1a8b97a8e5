"""The schema of an `EndpointPickerConfig`: its sections, as strict as the Go picker (unknown fields are errors)."""

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from adsum.config import sections
from adsum.config.problems import Problems
from adsum.config.yaml_document import without_nulls
from epp.outliers.settings import OutlierSettings
from epp.outliers.slow_start import SlowStartSettings
from epp.plugins.section import Duration, Quantity, Section

Wait = Annotated[Duration, Field(ge=0.0, allow_inf_nan=False)]
"""The most that something may take; 0: no limit."""


class PluginSpec(Section):
    """A plugin, its name in this file, and its parameters."""

    type: str = Field(min_length=1)
    """A built-in one, or one of an installed package."""
    name: str = ""
    """The rest of the file names it by this; without it by its `type`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """The parameters of its type: [parameters of plugins](#parameters-of-plugins)."""


class Ref(Section):
    """A reference to a plugin by its name."""

    plugin_ref: str = Field(min_length=1)
    """The `name` of a plugin."""


class ProfilePlugin(Ref):
    """A plugin of a profile."""

    weight: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    """The weight of a scorer, 1 without it; other plugins have none."""


class ProfileSpec(Section):
    """Plugins that choose together."""

    name: str
    """A profile handler names it by this."""
    plugins: list[ProfilePlugin] = Field(default_factory=list)
    """Its filters, scorers and picker; filters in this order."""


class SourceSpec(Ref):
    """A data source and its extractors."""

    extractors: list[Ref] = Field(default_factory=list)
    """The plugins that read the source's answers."""


class DataLayer(Section):
    """The sources of metrics and of endpoints."""

    inject_defaults: bool = True
    """Add the usual source of metrics pages, unless the file names one."""
    sources: list[SourceSpec] = Field(default_factory=list)
    """Says where the numbers of endpoints come from."""
    discovery: Ref | None = None
    """A `file-discovery`: the workers are those of its file."""
    peer_discovery: Ref | None = None
    """No effect: pickers find each other with `--peers`."""
    cross_replica_syncer_plugin_ref: str | None = None
    """No effect: pickers find each other with `--peers`."""
    cross_replica_sync_interval: Duration | None = None
    """No effect: pickers find each other with `--peers`."""


class DetectorRef(Section):
    """A reference to a saturation detector."""

    plugin_ref: str = "utilization-detector"
    """The `name` of a saturation detector: it says how full the pool is."""


class PriorityBandSection(Section):
    """The limits on requests that wait at one priority."""

    priority: int = Field(default=0, ge=-(2**63), lt=2**63)
    """The priority of the requests in this band; the defaults of bands need none."""
    max_bytes: Quantity | None = None
    """Bytes of bodies that may wait at this priority; 0 or nothing: 1G."""
    max_requests: Quantity | None = None
    """Requests that may wait at this priority; 0 or nothing: 5000."""
    fairness_policy_ref: str | None = None
    """It decides whose request goes next; without it `global-strict-fairness-policy` does."""
    ordering_policy_ref: str | None = None
    """It decides which of their requests that is; without it `fcfs-ordering-policy` does."""


class FlowControl(Section):
    """Without the feature gate `flowControl` only `saturation_detector` has an effect."""

    max_bytes: Quantity | None = None
    """Bytes of bodies that may wait in all; without it no limit but `--max-buffered-bytes`."""
    max_requests: Quantity | None = None
    """Requests that may wait in all; without it no limit."""
    default_request_ttl: Wait | None = Field(default=None, alias="defaultRequestTTL")
    """A request may wait for this long while the pool has endpoints; without it 60s, 0s: no limit."""
    no_endpoint_request_ttl: Wait | None = Field(default=None, alias="noEndpointRequestTTL")
    """It may wait for this long while the pool has none; without it `defaultRequestTTL`."""
    default_priority_band: PriorityBandSection | None = None
    """The limits of priorities without a band of their own."""
    default_negative_priority_band: PriorityBandSection | None = None
    """The same below 0; without it `defaultPriorityBand`."""
    priority_bands: list[PriorityBandSection] = Field(default_factory=list)
    """The limits and policies of one priority each."""
    usage_limit_policy_plugin_ref: str | None = None
    """It decides how full the pool may be for each priority; without it `static-usage-limit-policy` does."""
    saturation_detector: DetectorRef | None = None
    """The plugin that says when the pool is full; without it a `utilization-detector`."""
    enable_eviction: bool = False
    """Requests of negative priority make room for higher ones."""


class RequestHandler(Section):
    """The parsers of request bodies."""

    parsers: list[Ref] = Field(default_factory=list)
    """`passthrough-parser`: bodies are not parsed. The others are built in."""


API_VERSION: Final = "llm-d.ai/v1"
KIND: Final = "EndpointPickerConfig"


class ConfigDocument(Section):
    """One YAML or JSON document."""

    api_version: Literal["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    """The version of the file's form."""
    kind: Literal["EndpointPickerConfig"]
    """The kind of the file."""
    feature_gates: list[str] = Field(default_factory=list)
    """`flowControl` switches flow control on."""
    plugins: list[PluginSpec] = Field(default_factory=list)
    """The plugins that the rest of the file names."""
    scheduling_profiles: list[ProfileSpec] = Field(default_factory=list)
    """Each names filters, scorers and a picker that choose together. Without any, the default policy chooses."""
    data_layer: DataLayer = DataLayer()
    """It says where endpoints and their numbers come from."""
    flow_control: FlowControl = FlowControl()
    """Lets requests wait while the pool is full."""
    request_handler: RequestHandler = RequestHandler()
    """It says how bodies are read."""
    outlier_detection: OutlierSettings | None = None
    """Ejects workers that fail; a file without it ejects none."""
    slow_start: SlowStartSettings | None = None
    """Sends new workers fewer requests at first; a file without it as many as others."""
    saturation_detector: DetectorRef | None = None
    """The older place of `flowControl.saturationDetector`."""
    parser: Ref | None = None
    """The older place of `requestHandler.parsers`."""


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
