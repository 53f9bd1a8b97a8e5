"""The parameters of precise-prefix-cache-producer: names, values and defaults of the Go picker, where it has them. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from epp.plugins.section import Section
from epp.scheduling.kv_events.cache_index import MOST_BLOCKS

DEFAULT_PORT: Final = 5557
# bounded: at most 256 characters
_ENDPOINT: Final = re.compile(r"tcp://[^\s:/]{1,200}:[0-9]{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventSettings:
    """`token_wait`: seconds that a pick waits for tokens. `port`: of every worker's socket, plus the rank; None: each worker says.

    `optional`: without pyzmq nothing is read. `tokenizers`: files by model. `topic`: the beginning of the topics that are read;
    empty: all. `bind`: where workers connect to, if they do.
    """

    optional: bool = False
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    most_blocks: int = MOST_BLOCKS
    token_wait: float = 0.05
    port: int | None = None
    topic: str = ""
    bind: str | None = None


class PodDiscoveryParameters(Section):
    pod_label_selector: str = ""
    """No effect: discovery knows the workers."""
    pod_namespace: str = ""
    """No effect."""
    socket_port: int = Field(default=DEFAULT_PORT, ge=1, le=65_535)
    """The port of a worker's events, where it does not say itself."""


class KvEventsParameters(Section):
    zmq_endpoint: str = Field(default="", max_length=256)
    """Workers connect to this address, `tcp://*:5557`, if they publish to the picker under topics `kv@<worker>@<model>`. Without it
    the picker connects to them."""
    topic_filter: str = ""
    """The beginning of the topics that are read, `kv@` in the Go picker; without it all: a socket is one worker's."""
    concurrency: int = Field(default=4, ge=1)
    """No effect."""
    discover_pods: bool = True
    """No effect: discovery knows the workers."""
    engine_type: Literal["", "vllm", "sglang", "trtllm"] = ""
    """No effect: the messages of all are read."""
    pod_discovery_config: PodDiscoveryParameters | None = None
    """The socket is there. Without it each worker says where its own is."""

    @field_validator("zmq_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if endpoint and not _ENDPOINT.fullmatch(endpoint):
            raise ValueError(
                f"{endpoint[:60]!r} is no address of a socket; expected tcp://*:5557, for example"
            )
        return endpoint.replace("tcp://0.0.0.0:", "tcp://*:")


class MemoryIndexParameters(Section):
    size: int = Field(default=MOST_BLOCKS, ge=1)
    """This many blocks are remembered."""
    pod_cache_size: int = Field(default=10, ge=1)
    """No effect: a block has all workers that hold it."""


class BlockIndexParameters(Section):
    in_memory_config: MemoryIndexParameters | None = None
    """It says how much is remembered."""
    enable_metrics: bool = True
    """No effect: the metrics are always there."""
    metrics_logging_interval: Any = None
    """No effect."""


class LocalTokenizerParameters(Section):
    model_tokenizer_map: dict[str, str] = Field(default_factory=dict, max_length=1000)
    """It has by model the path of its `tokenizer.json`, or of the folder that also has its chat template. It is asked where no
    worker gives the tokens."""
    auto_discovery_dir: str = ""
    """No effect: name each model."""
    auto_discovery_tokenizer_file_name: str = ""
    """No effect."""


class TokenizersPoolParameters(Section):
    model_name: str = ""
    """No effect: requests name their model."""
    local: LocalTokenizerParameters | None = None
    """Files of tokenizers."""
    workers_count: int = 5
    """No effect."""
    min_prefix_overlap_ratio: float = 0.8
    """No effect."""
    uds: Any = None
    """No effect: workers are asked."""
    hf: Any = None
    """No effect: nothing is downloaded."""


class IndexerParameters(Section):
    tokenizers_pool_config: TokenizersPoolParameters | None = None
    """Sources of the tokens of prompts, beside the workers."""
    kv_block_index_config: BlockIndexParameters | None = None
    """It says how much is remembered."""
    kv_cache_backend_configs: list[Mapping[str, Any]] | None = None
    """No effect: GPU and host memory count alike."""


class PreciseProducerParameters(Section):
    token_processor_config: Any = None
    """No effect: each worker's events say its own size of blocks, and keys are made of tokens."""
    indexer_config: IndexerParameters | None = None
    """This many blocks are remembered."""
    kv_events_config: KvEventsParameters | None = None
    """Workers publish there. Without it each worker says where (`/kv_event_sources`, `/server_info`)."""
    speculative_indexing: bool = True
    """No effect: a prompt counts where it was sent until its worker has answered."""
    speculative_ttl: str = Field(default="2s", alias="speculativeTTL")
    """No effect."""
    token_wait_ms: int = Field(default=50, ge=0, le=10_000)
    """A parameter of adsum's own: how long a pick waits for the tokens of its prompt, in milliseconds. After that the
    estimate decides."""

    optional: bool = False
    """A parameter of adsum's own: where the extra `kv` is not installed, the estimate decides alone. Otherwise that is an error."""

    @model_validator(mode="before")
    @classmethod
    def _reject_other_indexes(cls, given: object) -> object:
        index = given.get("indexerConfig", {}) if isinstance(given, dict) else {}
        blocks = index.get("kvBlockIndexConfig", {}) if isinstance(index, dict) else {}
        for name in ("redisConfig", "valkeyConfig", "costAwareMemoryConfig"):
            if isinstance(blocks, dict) and blocks.get(name) is not None:
                raise ValueError(
                    f"indexerConfig.kvBlockIndexConfig.{name} is not there: blocks are kept in memory; use inMemoryConfig"
                )
        return given

    def settings(self) -> KvEventSettings:
        events = self.kv_events_config or KvEventsParameters()
        found = events.pod_discovery_config
        blocks = self.indexer_config and self.indexer_config.kv_block_index_config
        pool = self.indexer_config and self.indexer_config.tokenizers_pool_config
        local = (pool and pool.local) or LocalTokenizerParameters()
        memory = (blocks and blocks.in_memory_config) or MemoryIndexParameters()
        return KvEventSettings(
            optional=self.optional,
            tokenizers=local.model_tokenizer_map,
            most_blocks=min(memory.size, MOST_BLOCKS),
            token_wait=self.token_wait_ms / 1000.0,
            port=None if found is None else found.socket_port,
            topic=events.topic_filter,
            bind=events.zmq_endpoint or None,
        )
