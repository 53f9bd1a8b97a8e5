"""The parameters of each built-in plugin type, under the Go picker's names."""

import math
import ssl
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field, model_validator

from epp.config.document import Duration, Headroom, Limit, Section
from epp.endpoints.worker_metrics import WorkerMetric
from epp.scheduling.scorers.in_flight import DEFAULT_REQUESTS
from epp.scraping.engines import Engine, Series, other_series


class NoParameters(Section):
    """The type has no parameters."""


class PickerParameters(Section):
    """`max_num_of_endpoints` counts the choice and its fallbacks."""

    max_num_of_endpoints: int = Field(default=1, ge=1)


class LoadAwareParameters(Section):
    """`threshold`: the queue length that counts as full."""

    threshold: int = Field(default=128, ge=1)


class ActiveRequestParameters(Section):
    """`request_timeout` and `in_flight_load_producer_name` have no effect: requests in flight are always counted."""

    idle_threshold: int = Field(default=0, ge=0)
    max_busy_score: float = Field(default=1.0, ge=0.0, le=1.0)
    request_timeout: str | None = None
    in_flight_load_producer_name: str | None = None


class InFlightParameters(Section):
    """`requests`: the number of requests that scores 0.5."""

    requests: int = Field(default=DEFAULT_REQUESTS, ge=1)


class SelectorRequirement(Section):
    """One line of matchExpressions."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_values(self) -> "SelectorRequirement":
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"{self.operator} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"{self.operator} takes no values")
        return self


class SelectorParameters(Section):
    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: list[SelectorRequirement] = Field(default_factory=list)


class DetectorParameters(Section):
    """An endpoint counts as full at these thresholds; staleness in seconds."""

    queue_depth_threshold: Limit = 5
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    metrics_staleness_threshold: Duration = Field(default=0.2, gt=0.0)
    headroom: Headroom = 0.0


class MetricsSourceParameters(Section):
    """The URL of the metrics pages, unless a worker's metadata name another. `interval` None: the flag's."""

    scheme: Literal["http", "https"] = "http"
    path: str = Field(default="/metrics", pattern=r"^/[!-~]*$")
    port: int | None = Field(default=None, ge=1, le=65535)
    interval: Duration | None = Field(default=None, gt=0.0)
    insecure_skip_verify: bool = True
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""

    def tls(self) -> ssl.SSLContext | None:
        """The context for https, None for http; raises OSError for a file that cannot be read or is not a certificate."""
        if self.scheme == "http":
            return None
        context = ssl.create_default_context(cafile=self.ca_cert_path or None)
        if self.insecure_skip_verify and not self.ca_cert_path:  # the Go picker's default
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_cert_path:
            context.load_cert_chain(self.client_cert_path, self.client_key_path or None)
        return context


class PrefixProducerParameters(Section):
    """The size of a prompt's blocks, and how many blocks are matched and remembered.

    A `max_prefix_...` of 0 is no limit; the one in tokens overrides the one in blocks. Its default is a quarter of the Go
    picker's: longer prefixes distinguish few prompts and cost as much again. `auto_tune`: use the size of the KV cache
    from a worker's metrics page instead of `lru_capacity_per_server`. `block_size`, in characters, is obsolete and has no
    effect.
    """

    auto_tune: bool = True
    block_size_tokens: int = Field(default=16, ge=0)
    block_size: int = 0
    max_prefix_blocks_to_match: int = Field(default=0, ge=0)
    max_prefix_tokens_to_match: int = Field(default=32_768, ge=0)
    lru_capacity_per_server: int = Field(default=31_250, ge=0)


_RENAMED = {
    "hashBlockSize": "blockSizeTokens, in tokens",
    "blockSize": "blockSizeTokens, in tokens",
    "maxPrefixBlocksToMatch": "maxPrefixBlocksToMatch",
    "lruCapacityPerServer": "lruCapacityPerServer",
}
"""Parameters of the prefix plugin of the Gateway API Inference Extension, and the producer's names for them."""


class PrefixScorerParameters(Section):
    """`prefix_match_info_producer_name` None: the file's producer, else the default one."""

    prefix_match_info_producer_name: str | None = None
    match_length_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    match_length_scale_tokens: int = Field(default=8192, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _reject_producer_parameters(cls, given: object) -> object:
        for name in given if isinstance(given, dict) else ():
            if newer := _RENAMED.get(name):
                raise ValueError(
                    f"{name!r} is a parameter of the plugin approx-prefix-cache-producer, as {newer}"
                )
        return given


class LeastCostParameters(Section):
    """`request_tokens`: what a request that is there costs, in tokens of a prompt. `interference`: the share of a prompt's
    cost that each request there suffers while it is computed. `adapter_load_seconds`: what it takes to load a LoRA adapter.
    `prefix_match_info_producer_name` None: the file's producer, else the default one.
    """

    request_tokens: float = Field(default=150.0, ge=0.0, allow_inf_nan=False)
    interference: float = Field(default=0.3, ge=0.0, allow_inf_nan=False)
    adapter_load_seconds: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    prefix_match_info_producer_name: str | None = None


class CustomMetricParameters(Section):
    """A further number of the page, which plugins read as an attribute of the endpoint."""

    attribute_key: str = Field(min_length=1)
    metric_spec: str = Field(min_length=1)


class EngineParameters(Section):
    """The metric names of one model server, each as `name{label=value}`."""

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
    custom_metrics: list[CustomMetricParameters] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_specs(self) -> "EngineParameters":
        self.engine({one.attribute_key: _attribute(one.attribute_key) for one in self.custom_metrics})
        return self

    def engine(self, attributes: Mapping[str, WorkerMetric]) -> Engine:
        """Raises ValueError for a text that is not a metric. `attributes`: the metric of each custom metric's key."""
        custom = {
            attributes[one.attribute_key]: (Series.parse(one.metric_spec),) for one in self.custom_metrics
        }
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
            others={**other_series(self.name), **custom},
        )

    def _cache_labels(self) -> tuple[str, str]:
        """The labels of the block size and of the number of blocks; vLLM's by default."""
        size, number = Engine(name="").cache_labels
        return self.cache_block_size_label_name or size, self.cache_num_blocks_label_name or number


class ExtractorParameters(Section):
    """`default_engine` None: detected from the page."""

    engine_label_key: str | None = None
    default_engine: str | None = None
    engine_configs: list[EngineParameters] = Field(default_factory=list)

    def attributes(self) -> dict[str, WorkerMetric]:
        """A new metric for each key of the custom metrics."""
        keys = [one.attribute_key for engine in self.engine_configs for one in engine.custom_metrics]
        return {key: _attribute(key) for key in keys}


def _attribute(key: str) -> WorkerMetric:
    return WorkerMetric(name=key, maximum=_MAX_ATTRIBUTE, series={}, unknown=math.nan, optional=True)


_MAX_ATTRIBUTE: Final = 1e300
"""Beyond it differences overflow."""


class ModelsSourceParameters(Section):
    """Accepted without effect: models are declared in the workers' metadata."""

    scheme: str = "http"
    path: str = "/v1/models"
    insecure_skip_verify: bool = True


class FileDiscoveryParameters(Section):
    path: str = Field(min_length=1)
    watch_file: bool = False
