"""The built-in plugin types: the roles, parameters and builder of each name in an EndpointPickerConfig."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from epp.config.document import Section
from epp.config.parameters import (
    ActiveRequestParameters,
    DetectorParameters,
    ExtractorParameters,
    FileDiscoveryParameters,
    InflightLoadParameters,
    InFlightParameters,
    LeastCostParameters,
    LoadAwareParameters,
    MetricsSourceParameters,
    ModelsSourceParameters,
    NoParameters,
    PickerParameters,
    PrefixProducerParameters,
    PrefixScorerParameters,
    SelectorParameters,
)
from epp.scheduling.filters.label_filters import (
    DECODE_ROLES,
    ENCODE_ROLES,
    PREFILL_ROLES,
    LabelSelectorFilter,
    Requirement,
    RoleFilter,
)
from epp.scheduling.handlers.single_profile import SingleProfileHandler
from epp.scheduling.pickers.score_pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker
from epp.scheduling.prefix.plugins import MIN_BLOCK_TOKENS, PRODUCER, PrefixCacheProducer
from epp.scheduling.saturation import UtilizationDetector
from epp.scheduling.scorers.in_flight import InFlightScorer
from epp.scheduling.scorers.load_scorers import (
    ActiveRequestScorer,
    KvCacheUtilizationScorer,
    LoadAwareScorer,
    LoraAffinityScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
)


class Role(Enum):
    """What a reference in the file may use a plugin for."""

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
    """`build` returns the plugin, from its parameters. `scraped`: a scorer that reads the workers' metrics."""

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


def _handler(build: Callable[[], object]) -> PluginType:
    return PluginType(frozenset({Role.HANDLER}), NoParameters, lambda given, rng: build())


def _structural(role: Role, parameters: type[Section] = NoParameters) -> PluginType:
    """A type without code of its own: only its parameters are read."""
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


def _prefix_producer(given: PrefixProducerParameters, rng: random.Random) -> PrefixCacheProducer:
    block_tokens = max(given.block_size_tokens, MIN_BLOCK_TOKENS)
    tokens = (
        given.lru_capacity_per_server * given.block_size_tokens
    )  # the parameter counts the worker's blocks, not ours
    return PrefixCacheProducer(
        block_tokens=block_tokens,
        max_tokens=given.max_prefix_tokens_to_match,
        max_blocks=given.max_prefix_blocks_to_match,
        capacity=tokens // block_tokens,
        auto_tune=given.auto_tune,
        seed=rng.getrandbits(64),
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
    "in-flight-scorer": _scorer(lambda given: InFlightScorer(given.requests), InFlightParameters),
    "prefix-cache-scorer": PluginType(  # built where its producer is known: epp.config.scheduler
        frozenset({Role.SCORER}), PrefixScorerParameters, lambda given, rng: given
    ),
    "least-cost-scorer": PluginType(  # built where its producers are known: epp.config.scheduler
        frozenset({Role.SCORER}), LeastCostParameters, lambda given, rng: given, scraped=True
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
    "single-profile-handler": _handler(SingleProfileHandler),
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
    PRODUCER: PluginType(frozenset({Role.PRODUCER}), PrefixProducerParameters, _prefix_producer),
    "inflight-load-producer": _structural(Role.PRODUCER, InflightLoadParameters),
}
