"""The plugin types that an EndpointPickerConfig can name: their parameters, and what each becomes."""

import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from epp.config_document import Duration, Section
from epp.metrics_page import Engine
from epp.saturation import UtilizationDetector
from epp.scheduling.filters import (
    DECODE_ROLES,
    ENCODE_ROLES,
    PREFILL_ROLES,
    LabelSelectorFilter,
    Requirement,
    RoleFilter,
)
from epp.scheduling.pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker
from epp.scheduling.scorers import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LoadAwareScorer,
    LoraAffinityScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
)


class NoParameters(Section):
    """A plugin that has nothing to set."""


class PickerParameters(Section):
    """`max_num_of_endpoints` is the choice and its fallbacks together."""

    max_num_of_endpoints: int = Field(default=1, ge=1)


class LoadAwareParameters(Section):
    """The queue that counts as full."""

    threshold: int = Field(default=128, ge=1)


class ActiveRequestParameters(Section):
    """`request_timeout` and `in_flight_load_producer_name` have no effect: what is in flight is always counted."""

    idle_threshold: int = Field(default=0, ge=0)
    max_busy_score: float = Field(default=1.0, ge=0.0, le=1.0)
    request_timeout: str | None = None
    in_flight_load_producer_name: str | None = None


class SelectorRequirement(Section):
    """One line of matchExpressions."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _values_fit(self) -> "SelectorRequirement":
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"{self.operator} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"{self.operator} takes no values")
        return self


class SelectorParameters(Section):
    """A Kubernetes LabelSelector."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: list[SelectorRequirement] = Field(default_factory=list)


class DetectorParameters(Section):
    """Thresholds at which an endpoint is full; staleness in seconds."""

    queue_depth_threshold: int = Field(default=5, ge=1)
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    metrics_staleness_threshold: Duration = Field(default=0.2, gt=0.0)
    headroom: float = Field(default=0.0, ge=0.0)


class MetricsSourceParameters(Section):
    """Where a worker's metrics page is, unless its metadata say otherwise. `interval` None: the flag's."""

    scheme: Literal["http", "https"] = "http"
    path: str = Field(default="/metrics", pattern=r"^/[!-~]*$")
    port: int | None = Field(default=None, ge=1, le=65535)
    interval: Duration | None = Field(default=None, gt=0.0)
    insecure_skip_verify: bool = True
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""

    def tls(self) -> ssl.SSLContext | None:
        """For scraping https, None for http; OSError when a file cannot be read or is no certificate."""
        if self.scheme == "http":
            return None
        context = ssl.create_default_context(cafile=self.ca_cert_path or None)
        if self.insecure_skip_verify and not self.ca_cert_path:  # the Go picker's default
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_cert_path:
            context.load_cert_chain(self.client_cert_path, self.client_key_path or None)
        return context


class EngineParameters(Section):
    """Where one kind of model server keeps its numbers: `name{label=value}` each."""

    name: str = Field(min_length=1)
    queued_requests_spec: str = ""
    running_requests_spec: str = ""
    kv_usage_spec: str = ""
    lora_spec: str = ""
    cache_info_spec: str = ""
    cache_block_size_label_name: str = ""
    cache_num_blocks_label_name: str = ""
    cache_block_size_spec: str = ""
    cache_num_blocks_spec: str = ""

    @model_validator(mode="after")
    def _specs_are_sound(self) -> "EngineParameters":
        self.engine()
        return self

    def engine(self) -> Engine:
        """The engine that this describes; ValueError for what is not a metric."""
        return Engine.of(
            self.name,
            waiting=self.queued_requests_spec,
            running=self.running_requests_spec,
            kv_usage=self.kv_usage_spec,
            lora=self.lora_spec,
        )


class ExtractorParameters(Section):
    """`default_engine` None: found out from the page."""

    engine_label_key: str | None = None
    default_engine: str | None = None
    engine_configs: list[EngineParameters] = Field(default_factory=list)


class ModelsSourceParameters(Section):
    """Accepted without effect: models are declared in the workers' metadata."""

    scheme: str = "http"
    path: str = "/v1/models"
    insecure_skip_verify: bool = True


class FileDiscoveryParameters(Section):
    """The file that lists the endpoints."""

    path: str = Field(min_length=1)
    watch_file: bool = False


class Role(Enum):
    """What a plugin can be referred to as."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    HANDLER = "profile handler"
    DETECTOR = "saturation detector"
    SOURCE = "data source"
    EXTRACTOR = "extractor"
    DISCOVERY = "discovery"
    PARSER = "parser"
    POLICY = "flow control policy"
    PRODUCER = "data producer"


@dataclass(frozen=True, slots=True)
class PluginType:
    """One type: its roles, its parameters, and what is built of them; `scraped`: it reads what workers publish."""

    roles: frozenset[Role]
    parameters: type[Section]
    build: Callable[[Any, random.Random], Any]
    scraped: bool = False


def _filter(build: Callable[[Any], object], parameters: type[Section] = NoParameters) -> PluginType:
    return PluginType(frozenset({Role.FILTER}), parameters, lambda given, rng: build(given))


def _scorer(
    build: Callable[[Any], object], parameters: type[Section] = NoParameters, *, scraped: bool = True
) -> PluginType:
    return PluginType(frozenset({Role.SCORER}), parameters, lambda given, rng: build(given), scraped)


def _picker(build: Callable[[random.Random], object]) -> PluginType:
    return PluginType(frozenset({Role.PICKER}), PickerParameters, lambda given, rng: build(rng))


def _structural(role: Role, parameters: type[Section] = NoParameters) -> PluginType:
    """A part that is always there, or whose parameters are all there is to it."""
    return PluginType(frozenset({role}), parameters, lambda given, rng: given)


def _selector(given: SelectorParameters) -> LabelSelectorFilter:
    requirements = (
        Requirement(one.key, one.operator, frozenset(one.values)) for one in given.match_expressions
    )
    return LabelSelectorFilter(given.match_labels, tuple(requirements))


def _detector(given: DetectorParameters, rng: random.Random) -> UtilizationDetector:
    return UtilizationDetector(
        queue_depth=given.queue_depth_threshold,
        kv_cache_utilization=given.kv_cache_util_threshold,
        staleness=given.metrics_staleness_threshold,
        headroom=given.headroom,
    )


PLUGINS: Final[Mapping[str, PluginType]] = {
    "queue-scorer": _scorer(lambda given: QueueScorer()),
    "kv-cache-utilization-scorer": _scorer(lambda given: KvCacheUtilizationScorer()),
    "running-requests-size-scorer": _scorer(lambda given: RunningRequestsSizeScorer()),
    "lora-affinity-scorer": _scorer(lambda given: LoraAffinityScorer()),
    "load-aware-scorer": _scorer(lambda given: LoadAwareScorer(given.threshold), LoadAwareParameters),
    "active-request-scorer": _scorer(
        lambda given: ActiveRequestScorer(given.idle_threshold, given.max_busy_score),
        ActiveRequestParameters,
        scraped=False,
    ),
    "decode-filter": _filter(lambda given: RoleFilter(DECODE_ROLES, unlabelled=True)),
    "prefill-filter": _filter(lambda given: RoleFilter(PREFILL_ROLES)),
    "encode-filter": _filter(lambda given: RoleFilter(ENCODE_ROLES)),
    "label-selector-filter": _filter(_selector, SelectorParameters),
    "max-score-picker": _picker(MaxScorePicker),
    "random-picker": _picker(RandomPicker),
    "weighted-random-picker": _picker(WeightedRandomPicker),
    "utilization-detector": PluginType(
        frozenset({Role.DETECTOR, Role.FILTER}), DetectorParameters, _detector
    ),
    "single-profile-handler": _structural(Role.HANDLER),
    "metrics-data-source": _structural(Role.SOURCE, MetricsSourceParameters),
    "core-metrics-extractor": _structural(Role.EXTRACTOR, ExtractorParameters),
    "models-data-source": _structural(Role.SOURCE, ModelsSourceParameters),
    "models-data-extractor": _structural(Role.EXTRACTOR),
    "file-discovery": _structural(Role.DISCOVERY, FileDiscoveryParameters),
    "openai-parser": _structural(Role.PARSER),
    "anthropic-parser": _structural(Role.PARSER),
    "vllmhttp-parser": _structural(Role.PARSER),
    "passthrough-parser": _structural(Role.PARSER),
    "static-usage-limit-policy": _structural(Role.POLICY),
    "fcfs-ordering-policy": _structural(Role.POLICY),
    "global-strict-fairness-policy": _structural(Role.POLICY),
    "inflight-load-producer": _structural(Role.PRODUCER),
}

GO_ONLY: Final = frozenset(
    {
        "prefix-cache-scorer",
        "approx-prefix-cache-producer",
        "precise-prefix-cache-scorer",
        "token-load-scorer",
    }
    | {"precise-prefix-cache-producer", "burst-prefix-cache-producer", "token-producer", "no-hit-lru-scorer"}
    | {"context-length-aware", "session-affinity-scorer", "session-affinity-filter", "session-id-producer"}
    | {
        "header-label-affinity-scorer",
        "endpoint-attribute-scorer",
        "endpoint-attribute-filter",
        "latency-scorer",
    }
    | {"topology-affinity-scorer", "topology-affinity-filter", "topology-extractor", "utilization-filter"}
    | {"prefix-cache-affinity-filter", "slo-headroom-tier-filter", "predicted-latency-producer"}
    | {"latency-slo-admitter", "probabilistic-admitter", "disagg-profile-handler", "pd-profile-handler"}
    | {
        "data-parallel-profile-handler",
        "header-profile-handler",
        "concurrency-detector",
        "edf-ordering-policy",
    }
    | {"round-robin-fairness-policy", "program-aware-fairness", "slo-deadline-ordering-policy"}
    | {"priority-holdback-policy", "soft-reflective-ceiling-policy", "sglanghttp-parser", "vllmgrpc-parser"}
    | {"vertexai-parser", "dcgm-data-source", "dcgm-extractor", "k8s-notification-source", "agent-identity"}
    | {"endpoint-notification-source", "request-attribute-reporter", "mm-embeddings-cache-scorer"}
)
"""Types of the Go picker that are not built here: naming one is an error that says so."""
