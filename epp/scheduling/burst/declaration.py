"""The declaration of burst-prefix-cache-producer."""

from typing import Final, Literal

from pydantic import Field, model_validator

from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.section import Section
from epp.scheduling.burst.placement import UNLIMITED, PlacementRules
from epp.scheduling.burst.producer import DEFAULT_BLOCKS, PRODUCER, BurstPrefixProducer


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


def _build(given: BurstPrefixParameters, context: PluginContext) -> BurstPrefixProducer:
    by_blocks = given.balance_by == "tokens"
    return BurstPrefixProducer(
        window=given.window_duration_ms / 1000.0,
        block_tokens=given.block_size_tokens,
        max_blocks=given.max_prefix_tokens_to_match // given.block_size_tokens or DEFAULT_BLOCKS,
        most_requests=None if given.max_batch_size == UNLIMITED else given.max_batch_size,
        rules=PlacementRules(given.max_per_replica, given.min_colocate_blocks, by_blocks),
        seed=context.rng.getrandbits(64),
    )


BURST_PREFIX_CACHE_PRODUCER: Final = PluginDeclaration(
    type=PRODUCER,
    role=Role.PRODUCER,
    parameters=BurstPrefixParameters,
    build=_build,
    single="a request waits in one window: only one burst-prefix-cache-producer is possible",
)
