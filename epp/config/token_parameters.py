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
    """`prefix_match_info_producer_name` None: the file's producer of prefixes; a file without one counts whole prompts.

    `sync_cross_replica_state` has no effect: pickers share no state.
    """

    add_estimated_output_tokens: bool = False
    output_ratio: float = Field(default=DEFAULT_OUTPUT_RATIO, ge=0.0, allow_inf_nan=False)
    max_estimated_output_tokens: int | None = Field(default=None, ge=0)
    prefix_match_info_producer_name: str | None = None
    sync_cross_replica_state: bool = True

    def output(self) -> OutputEstimate | None:
        if not self.add_estimated_output_tokens:
            return None
        return OutputEstimate(self.output_ratio, self.max_estimated_output_tokens)


class TokenLoadParameters(Section):
    """`queue_threshold_tokens` 0 or less: the default."""

    queue_threshold_tokens: int = token_load.DEFAULT_QUEUE_TOKENS
    in_flight_load_producer_name: str | None = None


class ConcurrencyParameters(Section):
    """`in_flight_load_producer_name` None: the one of that name, or one with the defaults."""

    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_concurrency: Limit = concurrency.DEFAULT_REQUESTS
    max_token_concurrency: Limit = concurrency.DEFAULT_TOKENS
    headroom: Headroom = 0.0
    in_flight_load_producer_name: str | None = None


def _parse_source(text: str) -> str:
    if text == "latencyPredictor":
        raise ValueError(
            "'latencyPredictor' is not supported: no latency is predicted; use prefillThroughput, with peakPrefillThroughput"
        )
    if text != "prefillThroughput":
        raise ValueError(f"{text[:60]!r} is no source of TTFT; expected prefillThroughput")
    return text


class PrefixAffinityParameters(Section):
    """`max_ttft_penalty_ms`: how much later an answer may begin, 0: no limit. `max_tokens_in_flight_penalty`: the same in
    tokens, of earlier Go pickers. The smaller limit counts; without any it is sticky whatever the load.
    """

    affinity_threshold: float = Field(default=prefix_affinity.DEFAULT_THRESHOLD, le=1.0, allow_inf_nan=False)
    exploration_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    max_ttft_penalty_ms: float = Field(
        default=prefix_affinity.DEFAULT_PENALTY * 1000.0,
        ge=0.0,
        allow_inf_nan=False,
        alias="maxTTFTPenaltyMs",
    )
    ttft_source: Annotated[str, parsed_by(_parse_source)] = "prefillThroughput"
    peak_prefill_throughput: float = Field(
        default=prefix_affinity.DEFAULT_THROUGHPUT, ge=0.0, allow_inf_nan=False
    )
    max_tokens_in_flight_penalty: int = Field(default=0, ge=0)
    prefix_match_info_producer_name: str | None = None
    latency_prediction_info_producer_name: str | None = None
    in_flight_load_producer_name: str | None = None

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
    """`max_prefix_tokens_to_match` 0: 2,048 blocks; `max_per_replica` and `max_batch_size` -1: no limit."""

    window_duration_ms: int = Field(default=100, ge=1, le=10_000)
    max_per_replica: int = Field(default=UNLIMITED, ge=UNLIMITED)
    block_size_tokens: int = Field(default=64, ge=1)
    max_prefix_tokens_to_match: int = Field(default=0, ge=0)
    min_colocate_blocks: int = Field(default=0, ge=0)
    max_batch_size: int = Field(default=1000, ge=UNLIMITED)
    balance_by: Literal["", "requests", "tokens"] = "requests"

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
    """Checked, and without effect: 4 bytes of a prompt count as one token, and nobody is asked for more.

    `vllm`, `udsTokenizerConfig`, `estimate`: where the Go picker gets tokens from; at most one of them.
    """

    model_name: str = ""
    vllm: dict[str, Any] | None = None
    uds_tokenizer_config: dict[str, Any] | None = None
    estimate: dict[str, Any] | None = None

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
