"""The built-in plugin types: the roles, parameters and builder of each name in an EndpointPickerConfig."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from epp.config.affinity_parameters import (
    AgentIdentityParameters,
    ByLabelParameters,
    ContextLengthParameters,
    DataParallelParameters,
    HeaderLabelParameters,
    HeaderProfileParameters,
    NoHitLruParameters,
    SessionAffinityParameters,
    SessionIdProducerParameters,
    TopologyExtractorParameters,
    TopologyFilterParameters,
    TopologyScorerParameters,
)
from epp.config.document import Section
from epp.config.flow_parameters import (
    PriorityHoldbackParameters,
    ProgramAwareParameters,
    StaticUsageLimitParameters,
)
from epp.config.load_parameters import (
    AttributeFilterParameters,
    AttributeScorerParameters,
    KubernetesNotificationParameters,
    ProbabilisticAdmitterParameters,
    UtilizationFilterParameters,
)
from epp.config.parameters import (
    ActiveRequestParameters,
    DetectorParameters,
    ExtractorParameters,
    FileDiscoveryParameters,
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
from epp.config.token_parameters import (
    BurstPrefixParameters,
    ConcurrencyParameters,
    InflightLoadParameters,
    PrefixAffinityParameters,
    TokenLoadParameters,
    TokenProducerParameters,
)
from epp.flow_control.deadline_orderings import EarliestDeadlineFirst, SloDeadline
from epp.flow_control.fairness_policy import GlobalStrict
from epp.flow_control.ordering_policy import FirstComeFirstServed
from epp.flow_control.round_robin import RoundRobin
from epp.flow_control.soft_reflective_ceiling import SoftReflectiveCeiling
from epp.scheduling.affinity.context_length import ContextLengthAware
from epp.scheduling.affinity.header_label import HeaderLabelAffinityScorer
from epp.scheduling.burst.producer import PRODUCER as BURST_PRODUCER
from epp.scheduling.burst.producer import BurstPrefixProducer
from epp.scheduling.conformance import HeaderSelectionFilter, tell_served
from epp.scheduling.filters.label_filters import (
    DECODE_ROLES,
    ENCODE_ROLES,
    PREFILL_ROLES,
    LabelFilter,
    LabelSelectorFilter,
    Requirement,
    RoleFilter,
)
from epp.scheduling.filters.utilization import UtilizationFilter
from epp.scheduling.handlers.data_parallel import DataParallelProfileHandler
from epp.scheduling.handlers.header_profile import (
    DEFAULT_HEADER,
    DEFAULT_PROFILE,
    HeaderProfileHandler,
)
from epp.scheduling.handlers.single_profile import SingleProfileHandler
from epp.scheduling.in_flight_load.producer import PRODUCER as IN_FLIGHT_PRODUCER
from epp.scheduling.pickers.score_pickers import MaxScorePicker, RandomPicker, WeightedRandomPicker
from epp.scheduling.prefix.plugins import MIN_BLOCK_TOKENS, PRODUCER, PrefixCacheProducer
from epp.scheduling.probabilistic_admitter import ProbabilisticAdmitter
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
    FAIRNESS = "fairness policy"
    ORDERING = "ordering policy"
    USAGE_LIMIT = "usage limit policy"
    EVICTION = "eviction policy"
    PRODUCER = "data producer"
    ADMITTER = "admitter"
    REQUEST_HEADERS = "request header processor"
    RESPONSE_HEADERS = "response header processor"

    @property
    def with_article(self) -> str:
        return f"{'an' if self.value[0] in 'aeio' else 'a'} {self.value}"


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


def _handler(build: Callable[[Any], object], parameters: type[Section] = NoParameters) -> PluginType:
    return PluginType(frozenset({Role.HANDLER}), parameters, lambda given, rng: build(given))


def _structural(role: Role, parameters: type[Section] = NoParameters) -> PluginType:
    """A type without code of its own: only its parameters are read."""
    return _connected(role, parameters)


def _connected(role: Role, parameters: type[Section], *, scraped: bool = False) -> PluginType:
    """A type that is built where the plugins that it needs are known: epp.config.connected_plugins."""
    return PluginType(frozenset({role}), parameters, lambda given, rng: given, scraped)


def _policy(role: Role, build: Callable[[], object]) -> PluginType:
    return PluginType(frozenset({role}), NoParameters, lambda given, rng: build())


def _usage_limit(
    parameters: type[StaticUsageLimitParameters] | type[PriorityHoldbackParameters],
) -> PluginType:
    return PluginType(frozenset({Role.USAGE_LIMIT}), parameters, lambda given, rng: given.policy())


def _selector(given: SelectorParameters) -> LabelSelectorFilter:
    requirements = (
        Requirement(one.key, one.operator, frozenset(one.values)) for one in given.match_expressions
    )
    return LabelSelectorFilter(given.match_labels, tuple(requirements))


def _by_label(given: ByLabelParameters) -> LabelFilter:
    return LabelFilter(given.label, frozenset(given.valid_values), given.allows_no_label)


def _utilization(given: UtilizationFilterParameters) -> UtilizationFilter:
    limits = [(condition.metric, condition.max_value) for condition in given.conditions]
    return UtilizationFilter(limits, given.fallback_on_empty)


def _admitter(given: ProbabilisticAdmitterParameters, rng: random.Random) -> ProbabilisticAdmitter:
    return ProbabilisticAdmitter(
        random.Random(rng.getrandbits(64)),
        queue_depth=given.queue_depth_threshold,
        kv_cache_utilization=given.kv_cache_util_threshold,
        power=given.power,
        k=given.k,
    )


def _detector(given: DetectorParameters, rng: random.Random) -> UtilizationDetector:
    return UtilizationDetector(
        queue_depth=given.queue_depth_threshold,
        kv_cache_utilization=given.kv_cache_util_threshold,
        staleness=given.metrics_staleness_threshold,
        headroom=given.headroom,
    )


def _prefix_producer(given: PrefixProducerParameters, rng: random.Random) -> PrefixCacheProducer:
    block_tokens = max(given.block_size_tokens, MIN_BLOCK_TOKENS)
    # the parameter counts the worker's blocks, not ours
    tokens = given.lru_capacity_per_server * given.block_size_tokens
    return PrefixCacheProducer(
        block_tokens=block_tokens,
        max_tokens=given.max_prefix_tokens_to_match,
        max_blocks=given.max_prefix_blocks_to_match,
        capacity=tokens // block_tokens,
        auto_tune=given.auto_tune,
        seed=rng.getrandbits(64),
    )


def _burst_producer(given: BurstPrefixParameters, rng: random.Random) -> BurstPrefixProducer:
    return BurstPrefixProducer(
        window=given.window_duration_ms / 1000.0,
        block_tokens=given.block_size_tokens,
        max_blocks=given.max_blocks,
        most_requests=given.most_requests,
        rules=given.rules(),
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
    "prefix-cache-scorer": _connected(Role.SCORER, PrefixScorerParameters),
    "no-hit-lru-scorer": _connected(Role.SCORER, NoHitLruParameters),
    "session-affinity-scorer": _connected(Role.SCORER, SessionAffinityParameters),
    "session-affinity-filter": _connected(Role.FILTER, SessionAffinityParameters),
    "header-label-affinity-scorer": _scorer(
        lambda given: HeaderLabelAffinityScorer(given.header_name, given.label_key),
        HeaderLabelParameters,
        scraped=False,
    ),
    "least-cost-scorer": _connected(Role.SCORER, LeastCostParameters, scraped=True),
    "token-load-scorer": _connected(Role.SCORER, TokenLoadParameters),
    "prefix-cache-affinity-filter": _connected(Role.FILTER, PrefixAffinityParameters),
    "topology-affinity-scorer": _connected(Role.SCORER, TopologyScorerParameters),
    "topology-affinity-filter": _connected(Role.FILTER, TopologyFilterParameters),
    "context-length-aware": PluginType(
        frozenset({Role.FILTER, Role.SCORER}),
        ContextLengthParameters,
        lambda given, rng: ContextLengthAware(given.label, filters=given.enable_filtering),
    ),
    "endpoint-attribute-scorer": _connected(Role.SCORER, AttributeScorerParameters, scraped=True),
    "endpoint-attribute-filter": _connected(Role.FILTER, AttributeFilterParameters),
    "utilization-filter": _filter(_utilization, UtilizationFilterParameters),
    "header-based-testing-filter": _filter(lambda given: HeaderSelectionFilter()),
    "decode-filter": _filter(lambda given: RoleFilter(DECODE_ROLES, unlabelled=True)),
    "prefill-filter": _filter(lambda given: RoleFilter(PREFILL_ROLES)),
    "encode-filter": _filter(lambda given: RoleFilter(ENCODE_ROLES)),
    "label-selector-filter": _filter(_selector, SelectorParameters),
    "by-label-selector": _filter(_selector, SelectorParameters),
    "by-label": _filter(_by_label, ByLabelParameters),
    "max-score-picker": _picker(MaxScorePicker),
    "random-picker": _picker(RandomPicker),
    "weighted-random-picker": _picker(WeightedRandomPicker),
    "utilization-detector": PluginType(
        frozenset({Role.DETECTOR, Role.FILTER}), DetectorParameters, _detector
    ),
    "concurrency-detector": PluginType(
        frozenset({Role.DETECTOR, Role.FILTER}), ConcurrencyParameters, lambda given, rng: given
    ),
    "single-profile-handler": _handler(lambda given: SingleProfileHandler()),
    "header-profile-handler": _handler(
        lambda given: HeaderProfileHandler(
            given.header_name or DEFAULT_HEADER, given.default_profile.strip() or DEFAULT_PROFILE
        ),
        HeaderProfileParameters,
    ),
    "data-parallel-profile-handler": _handler(
        lambda given: DataParallelProfileHandler(given.primary_port), DataParallelParameters
    ),
    "probabilistic-admitter": PluginType(
        frozenset({Role.ADMITTER}), ProbabilisticAdmitterParameters, _admitter
    ),
    "agent-identity": _structural(Role.REQUEST_HEADERS, AgentIdentityParameters),
    "session-id-producer": _structural(Role.PRODUCER, SessionIdProducerParameters),
    "destination-endpoint-served-verifier": PluginType(
        frozenset({Role.RESPONSE_HEADERS}), NoParameters, lambda given, rng: tell_served
    ),
    "topology-extractor": _structural(Role.EXTRACTOR, TopologyExtractorParameters),
    "endpoint-notification-source": _structural(Role.SOURCE),
    "k8s-notification-source": _structural(Role.SOURCE, KubernetesNotificationParameters),
    "metrics-data-source": _structural(Role.SOURCE, MetricsSourceParameters),
    "core-metrics-extractor": _structural(Role.EXTRACTOR, ExtractorParameters),
    "models-data-source": _structural(Role.SOURCE, ModelsSourceParameters),
    "models-data-extractor": _structural(Role.EXTRACTOR),
    "file-discovery": _structural(Role.DISCOVERY, FileDiscoveryParameters),
    "openai-parser": _structural(Role.PARSER),
    "anthropic-parser": _structural(Role.PARSER),
    "vllmhttp-parser": _structural(Role.PARSER),
    "passthrough-parser": _structural(Role.PARSER),
    "global-strict-fairness-policy": _policy(Role.FAIRNESS, GlobalStrict),
    "round-robin-fairness-policy": _policy(Role.FAIRNESS, RoundRobin),
    "program-aware-fairness": PluginType(
        frozenset({Role.FAIRNESS}), ProgramAwareParameters, lambda given, rng: given.policy()
    ),
    "fcfs-ordering-policy": _policy(Role.ORDERING, FirstComeFirstServed),
    "edf-ordering-policy": _policy(Role.ORDERING, EarliestDeadlineFirst),
    "slo-deadline-ordering-policy": _policy(Role.ORDERING, SloDeadline),
    "static-usage-limit-policy": _usage_limit(StaticUsageLimitParameters),
    "priority-holdback-policy": _usage_limit(PriorityHoldbackParameters),
    "soft-reflective-ceiling-policy": _policy(Role.USAGE_LIMIT, SoftReflectiveCeiling),
    "sheddable-eviction-filter": _structural(Role.EVICTION),
    "priority-then-time-eviction-order-policy": _structural(Role.EVICTION),
    PRODUCER: PluginType(frozenset({Role.PRODUCER}), PrefixProducerParameters, _prefix_producer),
    BURST_PRODUCER: PluginType(frozenset({Role.PRODUCER}), BurstPrefixParameters, _burst_producer),
    IN_FLIGHT_PRODUCER: _connected(Role.PRODUCER, InflightLoadParameters),
    "token-producer": _structural(Role.PRODUCER, TokenProducerParameters),
    "tokenizer": _structural(Role.PRODUCER, TokenProducerParameters),
}
