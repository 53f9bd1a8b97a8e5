"""What each plugin type of an EndpointPickerConfig can be told: its parameters."""

import ssl
from typing import Literal

from pydantic import Field, model_validator

from epp.config.document import Duration, Section
from epp.scheduling.scorers.in_flight import DEFAULT_REQUESTS
from epp.scraping.engines import Engine


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


class InFlightParameters(Section):
    """At how many requests a score is a half."""

    requests: int = Field(default=DEFAULT_REQUESTS, ge=1)


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


class InflightParameters(Section):
    """Accepted without effect: requests in flight are counted, tokens are not."""

    output_ratio: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    add_estimated_output_tokens: bool = False
    max_estimated_output_tokens: int | None = Field(default=None, ge=0)
    prefix_match_info_producer_name: str | None = None


class PrefixProducerParameters(Section):
    """How prompts are cut into blocks and how many of them are remembered.

    A cap of 0 is none; that in tokens wins over that in blocks. `auto_tune`: a worker whose metrics page says how large its
    KV cache is holds as much as that, in place of `lru_capacity_per_server`. `block_size`, in characters, is older and has
    no effect.
    The cap's default is a quarter of the Go picker's: what is beyond tells few prompts apart, and costs as much again.
    """

    auto_tune: bool = True
    block_size_tokens: int = Field(default=16, ge=0)
    block_size: int = 0
    max_prefix_blocks_to_match: int = Field(default=0, ge=0)
    max_prefix_tokens_to_match: int = Field(default=32_768, ge=0)
    lru_capacity_per_server: int = Field(default=31_250, ge=0)


_MOVED = {
    "hashBlockSize": "blockSizeTokens, in tokens",
    "blockSize": "blockSizeTokens, in tokens",
    "maxPrefixBlocksToMatch": "maxPrefixBlocksToMatch",
    "lruCapacityPerServer": "lruCapacityPerServer",
}
"""What the prefix plugin of the Gateway API Inference Extension was told, and what its producer calls it here."""


class PrefixScorerParameters(Section):
    """`prefix_match_info_producer_name` None: the producer that is there, or the default one."""

    prefix_match_info_producer_name: str | None = None
    match_length_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    match_length_scale_tokens: int = Field(default=8192, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _not_the_producer_s(cls, given: object) -> object:
        for name in given if isinstance(given, dict) else ():
            if newer := _MOVED.get(name):
                raise ValueError(f"{name!r} is set at the plugin approx-prefix-cache-producer, as {newer}")
        return given


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
            cache_info=self.cache_info_spec,
            cache_labels=self._cache_labels(),
            block_size=self.cache_block_size_spec,
            num_blocks=self.cache_num_blocks_spec,
        )

    def _cache_labels(self) -> tuple[str, str]:
        """Those of vLLM, where they have no name."""
        size, number = Engine(name="").cache_labels
        return self.cache_block_size_label_name or size, self.cache_num_blocks_label_name or number


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
