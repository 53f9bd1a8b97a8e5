"""The declarations of approx-prefix-cache-producer and prefix-cache-scorer; apart from them, because they are compiled."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from pydantic import Field, model_validator

from adsum.histogram import Histogram
from adsum.metric_families import counter, gauge, histogram
from adsum.process_limits import memory_limit
from epp.plugins.declaration import PluginContext, PluginDeclaration, Role
from epp.plugins.labels import EXTENSION_PREFIX, PREFIX
from epp.plugins.section import Quantity, Section
from epp.scheduling.plugin import PrefixMatchProducer, SharedPrefixProducer
from epp.scheduling.prefix.index import MAX_BYTES, PrefixIndex
from epp.scheduling.prefix.producer import BYTES, MIN_BLOCK_TOKENS, PRODUCER, RATIOS, PrefixCacheProducer
from epp.scheduling.prefix.scorer import PrefixCacheScorer

_LEAST_BYTES: Final = 16 * 1024 * 1024


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
    """This many blocks of a prompt are looked up; 0: no limit. `maxPrefixTokensToMatch` overrides it."""
    max_prefix_tokens_to_match: int = Field(default=32_768, ge=0)
    """The same in tokens. The default is a quarter of the Go picker's: longer prefixes distinguish few
    prompts."""
    lru_capacity_per_server: int = Field(default=31_250, ge=0)
    """This many of a worker's blocks are remembered."""
    max_index_bytes: Annotated[Quantity, Field(ge=1024 * 1024)] | None = None
    """The memory of the whole index, a parameter of adsum's own; without it a quarter of what the process may use (its
    control group's limit, or the machine's memory)."""


_RENAMED: Final = {
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


def prefix_matches(name: str | None, context: PluginContext) -> PrefixMatchProducer:
    """The producer of prefixes of that name, else the file's first, else one with the defaults."""
    return context.producer(
        name,
        PrefixMatchProducer,  # type: ignore[type-abstract]  # what a plugin needs, whoever provides it
        default=PRODUCER,
        field="prefixMatchInfoProducerName",
    )


def prefix_cache(name: str | None, context: PluginContext) -> SharedPrefixProducer:
    """The same, but one that remembers what workers hold."""
    return context.producer(
        name,
        SharedPrefixProducer,  # type: ignore[type-abstract]  # as above
        default=PRODUCER,
        field="prefixMatchInfoProducerName",
    )


def prefix_producer(given: PrefixProducerParameters, context: PluginContext) -> PrefixCacheProducer:
    """The estimate of what workers hold."""
    block_tokens = max(given.block_size_tokens, MIN_BLOCK_TOKENS)
    # the parameter counts the worker's blocks, not ours
    tokens = given.lru_capacity_per_server * given.block_size_tokens
    return PrefixCacheProducer(
        block_tokens=block_tokens,
        max_tokens=given.max_prefix_tokens_to_match,
        max_blocks=given.max_prefix_blocks_to_match,
        capacity=tokens // block_tokens,
        auto_tune=given.auto_tune,
        seed=context.rng.getrandbits(64),
        index=PrefixIndex(given.max_index_bytes or share_of_memory(context.processes)),
    )


def share_of_memory(processes: int) -> int:
    """Bytes of an index whose parameters say no other."""
    limit = memory_limit()
    return MAX_BYTES if limit is None else max(_LEAST_BYTES, limit // 4 // processes)


def _scorer(given: PrefixScorerParameters, context: PluginContext) -> PrefixCacheScorer:
    matches = prefix_matches(given.prefix_match_info_producer_name, context)
    return PrefixCacheScorer(matches, given.match_length_weight, given.match_length_scale_tokens)


_LABELS = ("plugin_name", "plugin_type")
_SIZE = "Blocks in the prefix index, each counted once for every worker that is believed to hold it."
_USED = "Memory of the prefix index, estimated."
_LIMIT = "The most memory of the prefix index: maxIndexBytes."
_EVICTED = "Blocks that the index forgot for want of memory, though the worker's cache has room for them."
_RATIO = "The share of a prompt that its worker was believed to hold."
_BYTES = "Bytes of a prompt that its worker was believed to hold."


def prefix_metrics(producers: Sequence[PrefixCacheProducer]) -> Iterator[Metric]:
    """A picker has one producer, unless scorers name several: these are numbered.

    The older names have no labels, so there all producers count together.
    """
    found = [
        ((PRODUCER if number == 1 else f"{PRODUCER}-{number}", PRODUCER), one.index, one.hits)
        for number, one in enumerate(producers, 1)
    ]
    name = PREFIX + "prefix_indexer_"
    yield gauge(name + "size", _SIZE, _LABELS, [(labels, len(index)) for labels, index, _ in found])
    yield gauge(name + "bytes", _USED, _LABELS, [(labels, index.used_bytes) for labels, index, _ in found])
    yield gauge(name + "limit_bytes", _LIMIT, _LABELS, [(labels, one.max_bytes) for labels, one, _ in found])
    evicted = [(labels, index.evicted) for labels, index, _ in found]
    yield counter(name + "evicted_blocks", _EVICTED, _LABELS, evicted)
    yield histogram(name + "hit_ratio", _RATIO, _LABELS, [(labels, hits.ratios) for labels, _, hits in found])
    yield histogram(name + "hit_bytes", _BYTES, _LABELS, [(labels, hits.bytes) for labels, _, hits in found])
    name = EXTENSION_PREFIX + "prefix_indexer_"
    yield GaugeMetricFamily(name + "size", _SIZE, sum(len(index) for _, index, _ in found))
    yield histogram(name + "hit_ratio", _RATIO, of=_sum(RATIOS, (hits.ratios for _, _, hits in found)))
    yield histogram(name + "hit_bytes", _BYTES, of=_sum(BYTES, (hits.bytes for _, _, hits in found)))


def _sum(bounds: Sequence[float], histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram(bounds)
    for one in histograms:
        total.add(one)
    return total


APPROX_PREFIX_CACHE_PRODUCER: Final = PluginDeclaration(
    type=PRODUCER,
    role=Role.PRODUCER,
    parameters=PrefixProducerParameters,
    build=prefix_producer,
    read_by_handlers=True,
    metrics=prefix_metrics,
)
PREFIX_CACHE_SCORER: Final = PluginDeclaration(
    type="prefix-cache-scorer",
    role=Role.SCORER,
    parameters=PrefixScorerParameters,
    build=_scorer,
    reads_metrics=False,
)
