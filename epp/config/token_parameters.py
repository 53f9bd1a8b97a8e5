"""The parameters of the plugins that count tokens in flight or place bursts of prompts, under the Go picker's names."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from epp.config.document import Headroom, Limit, Section
from epp.scheduling.burst.placement import UNLIMITED, PlacementRules
from epp.scheduling.burst.producer import DEFAULT_BLOCKS
from epp.scheduling.in_flight_load import concurrency, prefix_affinity, token_load
from epp.scheduling.in_flight_load.producer import DEFAULT_OUTPUT_RATIO, OutputEstimate
from runtime.config.sections import parsed_by


class InflightLoadParameters(Section):
    add_estimated_output_tokens: bool = False
    """Count the answer too."""
    output_ratio: float = Field(default=DEFAULT_OUTPUT_RATIO, ge=0.0, allow_inf_nan=False)
    """The estimated tokens of an answer for each token of its prompt."""
    max_estimated_output_tokens: int | None = Field(default=None, ge=0)
    """The most that an answer is estimated at."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's. A file without one counts whole prompts."""
    sync_cross_replica_state: bool = True
    """No effect: pickers share no state."""

    def output(self) -> OutputEstimate | None:
        if not self.add_estimated_output_tokens:
            return None
        return OutputEstimate(self.output_ratio, self.max_estimated_output_tokens)


class TokenLoadParameters(Section):
    queue_threshold_tokens: int = token_load.DEFAULT_QUEUE_TOKENS
    """The tokens in flight that score 0; 0 or less: the default."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""


class ConcurrencyParameters(Section):
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """What counts; `hybrid`: the larger of both at each endpoint."""
    max_concurrency: Limit = concurrency.DEFAULT_REQUESTS
    """Requests in flight at which an endpoint is full."""
    max_token_concurrency: Limit = concurrency.DEFAULT_TOKENS
    """Tokens in flight at which an endpoint is full."""
    headroom: Headroom = 0.0
    """As a filter: keeps endpoints up to this share above the limit."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""


def _parse_source(text: str) -> str:
    if text == "latencyPredictor":
        raise ValueError(
            "'latencyPredictor' is not supported: no latency is predicted; use prefillThroughput, with peakPrefillThroughput"
        )
    if text != "prefillThroughput":
        raise ValueError(f"{text[:60]!r} is no source of TTFT; expected prefillThroughput")
    return text


class PrefixAffinityParameters(Section):
    """Without any limit it is sticky whatever the load."""

    affinity_threshold: float = Field(default=prefix_affinity.DEFAULT_THRESHOLD, le=1.0, allow_inf_nan=False)
    """The share of the prompt that an endpoint has to hold to be kept."""
    exploration_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    """The share of requests that the filter lets pass."""
    max_ttft_penalty_ms: float = Field(
        default=prefix_affinity.DEFAULT_PENALTY * 1000.0,
        ge=0.0,
        allow_inf_nan=False,
        alias="maxTTFTPenaltyMs",
    )
    """How much later an answer may begin there than elsewhere, in milliseconds; 0: no limit."""
    ttft_source: Annotated[str, parsed_by(_parse_source)] = "prefillThroughput"
    """`prefillThroughput`, the only one: no latency is predicted."""
    peak_prefill_throughput: float = Field(
        default=prefix_affinity.DEFAULT_THROUGHPUT, ge=0.0, allow_inf_nan=False
    )
    """Tokens of prompts that a worker computes in a second. Measure yours."""
    max_tokens_in_flight_penalty: int = Field(default=0, ge=0)
    """The limit in tokens in flight, of earlier Go pickers; 0: none. The smaller limit counts."""
    prefix_match_info_producer_name: str | None = None
    """The `name` of the producer of prefixes; without it the file's producer, else one with the defaults."""
    latency_prediction_info_producer_name: str | None = None
    """No effect."""
    in_flight_load_producer_name: str | None = None
    """The `name` of an `inflight-load-producer`; without it the one of that name, or one with the defaults."""

    @model_validator(mode="after")
    def _check_throughput(self) -> "PrefixAffinityParameters":
        if self.max_ttft_penalty_ms and not self.peak_prefill_throughput:
            raise ValueError("peakPrefillThroughput must be above 0, unless maxTTFTPenaltyMs is 0")
        return self

    def penalty(self) -> float:
        """In tokens, the smaller of both limits; 0: none."""
        limits = (
            self.max_ttft_penalty_ms / 1000.0 * self.peak_prefill_throughput,
            float(self.max_tokens_in_flight_penalty),
        )
        return min((limit for limit in limits if limit), default=0.0)


class BurstPrefixParameters(Section):
    window_duration_ms: int = Field(default=100, ge=1, le=10_000)
    """How long prompts wait for each other, in milliseconds."""
    max_per_replica: int = Field(default=UNLIMITED, ge=UNLIMITED)
    """How many equal prompts go to one worker; -1: all."""
    block_size_tokens: int = Field(default=64, ge=1)
    """The tokens of a block, 4 bytes each."""
    max_prefix_tokens_to_match: int = Field(default=0, ge=0)
    """How much of a prompt is compared, in tokens; 0: 2,048 blocks."""
    min_colocate_blocks: int = Field(default=0, ge=0)
    """Prompts with so many blocks in common may go together too; 0: equal ones alone."""
    max_batch_size: int = Field(default=1000, ge=UNLIMITED)
    """How many prompts of one window wait; later ones do not. -1: all."""
    balance_by: Literal["", "requests", "tokens"] = "requests"
    """What is spread over the workers."""

    @model_validator(mode="after")
    def _check_limits(self) -> "BurstPrefixParameters":
        for name, limit in (("maxPerReplica", self.max_per_replica), ("maxBatchSize", self.max_batch_size)):
            if limit == 0:
                raise ValueError(f"{name} must be at least 1, or -1 for no limit")
        if 0 < self.max_prefix_tokens_to_match < self.block_size_tokens:
            raise ValueError("maxPrefixTokensToMatch must be 0, or at least blockSizeTokens")
        return self

    @property
    def max_blocks(self) -> int:
        return self.max_prefix_tokens_to_match // self.block_size_tokens or DEFAULT_BLOCKS

    @property
    def most_requests(self) -> int | None:
        return None if self.max_batch_size == UNLIMITED else self.max_batch_size

    def rules(self) -> PlacementRules:
        by_blocks = self.balance_by == "tokens"
        return PlacementRules(self.max_per_replica, self.min_colocate_blocks, by_blocks)


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

    @property
    def asks_for_tokens(self) -> bool:
        return bool(self.model_name)
