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
    max_num_of_endpoints: int = Field(default=1, ge=1)
    """How many endpoints a pick names: the choice and its fallbacks."""


class LoadAwareParameters(Section):
    threshold: int = Field(default=128, ge=1)
    """The queue length that scores 0."""


class ActiveRequestParameters(Section):
    idle_threshold: int = Field(default=0, ge=0)
    """Up to so many requests in flight an endpoint scores 1."""
    max_busy_score: float = Field(default=1.0, ge=0.0, le=1.0)
    """The most that an endpoint above it scores."""
    request_timeout: str | None = None
    """No effect."""
    in_flight_load_producer_name: str | None = None
    """No effect: requests in flight are always counted."""


class InFlightParameters(Section):
    requests: int = Field(default=DEFAULT_REQUESTS, ge=1)
    """So many requests that the page does not show yet score 0.5."""


class SelectorRequirement(Section):
    """One line of matchExpressions."""

    key: str
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """As in Kubernetes."""
    values: list[str] = Field(default_factory=list)
    """Of `In` and `NotIn`."""

    @model_validator(mode="after")
    def _check_values(self) -> "SelectorRequirement":
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"{self.operator} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"{self.operator} takes no values")
        return self


class SelectorParameters(Section):
    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels that an endpoint has to have, with their values."""
    match_expressions: list[SelectorRequirement] = Field(default_factory=list)
    """Further conditions; all have to hold."""


class DetectorParameters(Section):
    """An endpoint is full at one of these thresholds."""

    queue_depth_threshold: Limit = 5
    """The queue length that counts as full."""
    kv_cache_util_threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """The share of the KV cache in use that counts as full."""
    metrics_staleness_threshold: Duration = Field(default=0.2, gt=0.0)
    """With older numbers an endpoint counts as full, or with flow control by what is in flight."""
    headroom: Headroom = 0.0
    """As a filter: keeps endpoints up to this share above the thresholds."""


class MetricsSourceParameters(Section):
    """Where the metrics pages of the workers are."""

    scheme: Literal["http", "https"] = "http"
    """Of the metrics pages."""
    path: str = Field(default="/metrics", pattern=r"^/[!-~]*$")
    """Of the metrics pages, unless a worker's metadata name another one."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Of the metrics pages, unless a worker's metadata name another one; without it the port that serves."""
    interval: Duration | None = Field(default=None, gt=0.0)
    """Between two reads of one page; without it `--refresh-metrics-interval`."""
    insecure_skip_verify: bool = True
    """Accept any certificate, unless `caCertPath` is given."""
    ca_cert_path: str = ""
    """PEM: who signed the certificates of the workers."""
    client_cert_path: str = ""
    """PEM: the picker's own certificate."""
    client_key_path: str = ""
    """PEM: its key; without it `clientCertPath` has it."""

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
    """The size of a prompt's blocks, and how many of them are looked up and remembered."""

    auto_tune: bool = True
    """Remember as many blocks of a worker as its metrics page says that its KV cache has, instead of
    `lruCapacityPerServer`."""
    block_size_tokens: int = Field(default=16, ge=0)
    """The tokens of a worker's block, 4 bytes each. Fewer than 64 count as 64 here, but not for
    `lruCapacityPerServer`."""
    block_size: int = 0
    """No effect: the older name, in characters."""
    max_prefix_blocks_to_match: int = Field(default=0, ge=0)
    """How much of a prompt is looked up, in blocks; 0: no limit. `maxPrefixTokensToMatch` overrides it."""
    max_prefix_tokens_to_match: int = Field(default=32_768, ge=0)
    """The same in tokens. The default is a quarter of the Go picker's: longer prefixes distinguish few
    prompts."""
    lru_capacity_per_server: int = Field(default=31_250, ge=0)
    """How many of a worker's blocks are remembered."""


_RENAMED = {
    "hashBlockSize": "blockSizeTokens, in tokens",
    "blockSize": "blockSizeTokens, in tokens",
    "maxPrefixBlocksToMatch": "maxPrefixBlocksToMatch",
    "lruCapacityPerServer": "lruCapacityPerServer",
}
"""Parameters of the prefix plugin of the Gateway API Inference Extension, and the producer's names for them."""


class PrefixScorerParameters(Section):
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""
    match_length_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """The part of the score that is the square of (tokens cached / `matchLengthScaleTokens`) instead of the
    share."""
    match_length_scale_tokens: int = Field(default=8192, ge=1)
    """The cached tokens at which that part is full."""

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
    request_tokens: float = Field(default=150.0, ge=0.0, allow_inf_nan=False)
    """What a request that is there costs, in tokens of a prompt."""
    interference: float = Field(default=0.3, ge=0.0, allow_inf_nan=False)
    """The share of a prompt's cost that each request there suffers while it is computed."""
    adapter_load_seconds: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    """What it takes to load a LoRA adapter, in seconds."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""


class CustomMetricParameters(Section):
    """A further number of the page, which plugins read as an attribute of the endpoint."""

    attribute_key: str = Field(min_length=1)
    """By which plugins name the number."""
    metric_spec: str = Field(min_length=1)
    """The series, as `name{label=value}`."""


class EngineParameters(Section):
    """The metric names of one model server, each as `name{label=value}`."""

    name: str = Field(min_length=1)
    """Of the model server; one with a built-in name replaces that one."""
    queued_requests_spec: str = ""
    """Requests that wait."""
    running_requests_spec: str = ""
    """Requests that are computed."""
    kv_usage_spec: str = ""
    """The share of the KV cache that is in use."""
    lora_spec: str = ""
    """The LoRA adapters that run and wait, in labels."""
    cache_info_spec: str = ""
    """The size of the KV cache, in labels."""
    cache_block_size_label_name: str = ""
    """The label of `cacheInfoSpec` with the tokens of a block; without it vLLM's, `block_size`."""
    cache_num_blocks_label_name: str = ""
    """The label of `cacheInfoSpec` with the number of blocks; without it vLLM's, `num_gpu_blocks`."""
    cache_block_size_spec: str = ""
    """The tokens of a block, where a series of its own has them."""
    cache_num_blocks_spec: str = ""
    """The number of blocks, where a series of its own has it."""
    custom_metrics: list[CustomMetricParameters] = Field(default_factory=list)
    """Further numbers of the page, for plugins."""

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
    engine_label_key: str | None = None
    """The label of an endpoint that names its model server."""
    default_engine: str | None = None
    """The model server of endpoints without that label; without it detected from the page."""
    engine_configs: list[EngineParameters] = Field(default_factory=list)
    """The series of model servers; those of the known ones are built in."""

    def attributes(self) -> dict[str, WorkerMetric]:
        """A new metric for each key of the custom metrics."""
        keys = [one.attribute_key for engine in self.engine_configs for one in engine.custom_metrics]
        return {key: _attribute(key) for key in keys}


def _attribute(key: str) -> WorkerMetric:
    return WorkerMetric(name=key, maximum=_MAX_ATTRIBUTE, series={}, unknown=math.nan, optional=True)


_MAX_ATTRIBUTE: Final = 1e300
"""Beyond it differences overflow."""


class ModelsSourceParameters(Section):
    """Accepted without effect: the picker asks the workers for `/v1/models` anyway."""

    scheme: str = "http"
    """No effect."""
    path: str = "/v1/models"
    """No effect."""
    insecure_skip_verify: bool = True
    """No effect."""


class FileDiscoveryParameters(Section):
    path: str = Field(min_length=1)
    """The file, in the form of the Go picker."""
    watch_file: bool = False
    """Read it again when it changes."""
