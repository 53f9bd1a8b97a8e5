"""The plugin types without code of their own: sources of endpoints' numbers, their extractors, parsers and tokenizers."""

import math
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from epp.endpoints.worker_metrics import WorkerMetric
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role, only_parameters
from epp.plugins.section import Duration, Section
from epp.scraping.engines import Engine, Series, other_series


class PageTls(Section):
    """Says how the picker and a worker prove who they are, for pages that are read by https."""

    insecure_skip_verify: bool = True
    """Accept any certificate, unless `caCertPath` is given."""
    ca_cert_path: str = ""
    """PEM: who signed the certificates of the workers."""
    client_cert_path: str = ""
    """PEM: the picker's own certificate."""
    client_key_path: str = ""
    """PEM: its key; without it `clientCertPath` has it."""

    def context(self) -> ssl.SSLContext:
        """Raises OSError for a file that cannot be read or is not a certificate."""
        context = ssl.create_default_context(cafile=self.ca_cert_path or None)
        if self.insecure_skip_verify and not self.ca_cert_path:  # the Go picker's default
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_cert_path:
            context.load_cert_chain(self.client_cert_path, self.client_key_path or None)
        return context


class MetricsSourceParameters(PageTls):
    """Says where the metrics pages of the workers are."""

    scheme: Literal["http", "https"] = "http"
    """The scheme of the metrics pages."""
    path: str = Field(default="/metrics", pattern=r"^/[!-~]*$")
    """The path of the metrics pages, unless a worker's metadata name another one."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """The pages' port, unless a worker's metadata name another one; without it the port that serves."""
    interval: Duration | None = Field(default=None, gt=0.0)
    """Between two reads of one page; without it `--refresh-metrics-interval`."""

    def tls(self) -> ssl.SSLContext | None:
        """The context for https, None for http; raises OSError for a file that cannot be read or is not a certificate."""
        return None if self.scheme == "http" else self.context()


class CustomMetricParameters(Section):
    """A further number of the page, which plugins read as an attribute of the endpoint."""

    attribute_key: str = Field(min_length=1)
    """Plugins name the number by this."""
    metric_spec: str = Field(min_length=1)
    """The series, as `name{label=value}`."""


class EngineParameters(Section):
    """The metric names of one model server, each as `name{label=value}`."""

    name: str = Field(min_length=1)
    """The name of the model server; one with a built-in name replaces that one."""
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
        return {key: _attribute(key) for key in self.attribute_keys}

    @property
    def attribute_keys(self) -> tuple[str, ...]:
        return tuple(one.attribute_key for engine in self.engine_configs for one in engine.custom_metrics)


def _attribute(key: str) -> WorkerMetric:
    return WorkerMetric(name=key, maximum=_MAX_ATTRIBUTE, series={}, unknown=math.nan, optional=True)


_MAX_ATTRIBUTE: Final = 1e300
"""Beyond it differences overflow."""


class ModelsSourceParameters(PageTls):
    """How the workers are asked for their models. The picker asks them without this plugin too."""

    scheme: Literal["http", "https"] | None = None
    """Their scheme; without it https where the metrics page has that on the same port, else http."""
    path: str = Field(default="/v1/models", pattern=r"^/[!-~]*$")
    """Asked for on the port that serves."""
    interval: Duration = Field(default=60.0, ge=1.0, le=86_400.0)
    """Between two requests to one worker."""


class FileDiscoveryParameters(Section):
    path: str = Field(min_length=1)
    """The file, in the form of the Go picker."""
    watch_file: bool = False
    """Read it again when it changes."""


class KubernetesNotificationParameters(Section):
    """Accepted without effect: discovery follows the workers by itself."""

    group: str = ""
    """No effect."""
    version: str = Field(min_length=1)
    """No effect."""
    kind: str = Field(min_length=1)
    """No effect."""


class TokenProducerParameters(Section):
    """Checked, and without effect: 4 bytes of a prompt count as one token, and nobody is asked for more."""

    model_name: str = ""
    """No effect."""
    vllm: dict[str, Any] | None = None
    """No effect: at most one of this and the next two."""
    uds_tokenizer_config: dict[str, Any] | None = None
    """No effect."""
    estimate: dict[str, Any] | None = None
    """No effect."""

    @model_validator(mode="after")
    def _check_one(self) -> "TokenProducerParameters":
        asked = self.vllm is not None or bool(self.model_name and not self.uds_tokenizer_config)
        if sum((asked, bool(self.uds_tokenizer_config), self.estimate is not None)) > 1:
            raise ValueError("tokens have one source; give only one of estimate, vllm and udsTokenizerConfig")
        if (asked or self.uds_tokenizer_config) and not self.model_name:
            raise ValueError("the source of tokens lacks modelName")
        return self


def _tokens_that_nobody_asks_for(given: TokenProducerParameters, context: PluginContext) -> Iterator[str]:
    if given.model_name and not context.is_wanted("precise-prefix-cache-producer", ""):
        yield f"token-producer asks nobody for the tokens of {given.model_name[:100]!r}: 4 bytes of a prompt count as one token"


METRICS_DATA_SOURCE: Final = only_parameters("metrics-data-source", Role.SOURCE, MetricsSourceParameters)
CORE_METRICS_EXTRACTOR: Final = only_parameters("core-metrics-extractor", Role.EXTRACTOR, ExtractorParameters)
FILE_DISCOVERY: Final = only_parameters("file-discovery", Role.DISCOVERY, FileDiscoveryParameters)
PASSTHROUGH_PARSER: Final = only_parameters("passthrough-parser", Role.PARSER)
TOKEN_PRODUCER: Final = only_parameters(
    "token-producer", Role.PRODUCER, TokenProducerParameters, warnings=_tokens_that_nobody_asks_for
)
DATA_LAYER: Final[tuple[PluginDeclaration, ...]] = (
    METRICS_DATA_SOURCE,
    CORE_METRICS_EXTRACTOR,
    only_parameters("models-data-source", Role.SOURCE, ModelsSourceParameters),
    only_parameters("models-data-extractor", Role.EXTRACTOR),
    only_parameters("endpoint-notification-source", Role.SOURCE),
    only_parameters("k8s-notification-source", Role.SOURCE, KubernetesNotificationParameters),
    FILE_DISCOVERY,
    only_parameters("openai-parser", Role.PARSER),
    only_parameters("anthropic-parser", Role.PARSER),
    only_parameters("vllmhttp-parser", Role.PARSER),
    PASSTHROUGH_PARSER,
    TOKEN_PRODUCER,
    replace(TOKEN_PRODUCER, type="tokenizer"),
)
