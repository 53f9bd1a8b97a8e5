"""The built-in plugin types. Each declares itself beside its algorithm; a new one is an import and an entry here.

The error for an unknown type stands here too: for a type of the Go picker that is not supported it names what a file can use
instead. Their names: llm-d-router, cmd/epp/runner/runner.go, August 2026.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from adsum.config.problems import did_you_mean
from epp.config.data_layer import DATA_LAYER
from epp.flow_control.eviction import EVICTION_ORDER_POLICY, SHEDDABLE_EVICTION_FILTER
from epp.flow_control.fairness import GLOBAL_STRICT_FAIRNESS_POLICY, ROUND_ROBIN_FAIRNESS_POLICY
from epp.flow_control.orderings import EDF_ORDERING_POLICY, FCFS_ORDERING_POLICY, SLO_DEADLINE_ORDERING_POLICY
from epp.flow_control.program_aware import PROGRAM_AWARE_FAIRNESS
from epp.flow_control.usage_limits import (
    PRIORITY_HOLDBACK_POLICY,
    SOFT_REFLECTIVE_CEILING_POLICY,
    STATIC_USAGE_LIMIT_POLICY,
)
from epp.plugins.declaration import PluginDeclaration, Role
from epp.scheduling.affinity.labels import CONTEXT_LENGTH_AWARE, HEADER_LABEL_AFFINITY_SCORER
from epp.scheduling.affinity.session_affinity import SESSION_AFFINITY_FILTER, SESSION_AFFINITY_SCORER
from epp.scheduling.affinity.sessions import AGENT_IDENTITY, SESSION_ID_PRODUCER
from epp.scheduling.affinity.topology import (
    TOPOLOGY_AFFINITY_FILTER,
    TOPOLOGY_AFFINITY_SCORER,
    TOPOLOGY_EXTRACTOR,
)
from epp.scheduling.burst.producer import BURST_PREFIX_CACHE_PRODUCER
from epp.scheduling.conformance import DESTINATION_ENDPOINT_SERVED_VERIFIER, HEADER_BASED_TESTING_FILTER
from epp.scheduling.endpoint_attribute import ENDPOINT_ATTRIBUTE_FILTER, ENDPOINT_ATTRIBUTE_SCORER
from epp.scheduling.filters import (
    BY_LABEL,
    BY_LABEL_SELECTOR,
    DECODE_FILTER,
    ENCODE_FILTER,
    LABEL_SELECTOR_FILTER,
    PREFILL_FILTER,
    UTILIZATION_FILTER,
)
from epp.scheduling.in_flight_load.plugins import (
    CONCURRENCY_DETECTOR,
    INFLIGHT_LOAD_PRODUCER,
    TOKEN_LOAD_SCORER,
)
from epp.scheduling.in_flight_load.prefix_affinity import PREFIX_CACHE_AFFINITY_FILTER
from epp.scheduling.kv_events.declaration import PRECISE_PREFIX_CACHE_PRODUCER
from epp.scheduling.pickers import MAX_SCORE_PICKER, RANDOM_PICKER, WEIGHTED_RANDOM_PICKER
from epp.scheduling.prefix.declarations import APPROX_PREFIX_CACHE_PRODUCER, PREFIX_CACHE_SCORER
from epp.scheduling.profile_handlers import (
    DATA_PARALLEL_PROFILE_HANDLER,
    HEADER_PROFILE_HANDLER,
    SINGLE_PROFILE_HANDLER,
)
from epp.scheduling.saturation import PROBABILISTIC_ADMITTER, UTILIZATION_DETECTOR
from epp.scheduling.scorers.load_scorers import (
    ACTIVE_REQUEST_SCORER,
    IN_FLIGHT_SCORER,
    KV_CACHE_UTILIZATION_SCORER,
    LOAD_AWARE_SCORER,
    LORA_AFFINITY_SCORER,
    QUEUE_SCORER,
    RUNNING_REQUESTS_SIZE_SCORER,
)
from epp.scheduling.scorers.no_hit_lru import NO_HIT_LRU_SCORER
from epp.scheduling.work_ahead.declaration import LEAST_COST_SCORER

_DECLARED: Final = (
    LEAST_COST_SCORER,
    QUEUE_SCORER,
    KV_CACHE_UTILIZATION_SCORER,
    RUNNING_REQUESTS_SIZE_SCORER,
    LORA_AFFINITY_SCORER,
    LOAD_AWARE_SCORER,
    ACTIVE_REQUEST_SCORER,
    IN_FLIGHT_SCORER,
    PREFIX_CACHE_SCORER,
    NO_HIT_LRU_SCORER,
    SESSION_AFFINITY_SCORER,
    SESSION_AFFINITY_FILTER,
    HEADER_LABEL_AFFINITY_SCORER,
    TOKEN_LOAD_SCORER,
    PREFIX_CACHE_AFFINITY_FILTER,
    TOPOLOGY_AFFINITY_SCORER,
    TOPOLOGY_AFFINITY_FILTER,
    TOPOLOGY_EXTRACTOR,
    CONTEXT_LENGTH_AWARE,
    ENDPOINT_ATTRIBUTE_SCORER,
    ENDPOINT_ATTRIBUTE_FILTER,
    UTILIZATION_FILTER,
    HEADER_BASED_TESTING_FILTER,
    DECODE_FILTER,
    PREFILL_FILTER,
    ENCODE_FILTER,
    LABEL_SELECTOR_FILTER,
    BY_LABEL_SELECTOR,
    BY_LABEL,
    MAX_SCORE_PICKER,
    RANDOM_PICKER,
    WEIGHTED_RANDOM_PICKER,
    UTILIZATION_DETECTOR,
    CONCURRENCY_DETECTOR,
    SINGLE_PROFILE_HANDLER,
    HEADER_PROFILE_HANDLER,
    DATA_PARALLEL_PROFILE_HANDLER,
    PROBABILISTIC_ADMITTER,
    AGENT_IDENTITY,
    SESSION_ID_PRODUCER,
    DESTINATION_ENDPOINT_SERVED_VERIFIER,
    GLOBAL_STRICT_FAIRNESS_POLICY,
    ROUND_ROBIN_FAIRNESS_POLICY,
    PROGRAM_AWARE_FAIRNESS,
    FCFS_ORDERING_POLICY,
    EDF_ORDERING_POLICY,
    SLO_DEADLINE_ORDERING_POLICY,
    STATIC_USAGE_LIMIT_POLICY,
    PRIORITY_HOLDBACK_POLICY,
    SOFT_REFLECTIVE_CEILING_POLICY,
    SHEDDABLE_EVICTION_FILTER,
    EVICTION_ORDER_POLICY,
    APPROX_PREFIX_CACHE_PRODUCER,
    BURST_PREFIX_CACHE_PRODUCER,
    PRECISE_PREFIX_CACHE_PRODUCER,
    INFLIGHT_LOAD_PRODUCER,
    *DATA_LAYER,
)
PLUGINS: Final[Mapping[str, PluginDeclaration]] = {declared.type: declared for declared in _DECLARED}
DEFAULTS: Final[Mapping[Role, str]] = {
    declared.role: declared.type for declared in _DECLARED if declared.is_default
}
"""What a file gets that names none of the role."""

_PREFIX: Final = (
    "use prefix-cache-scorer without prefixMatchInfoProducerName: it estimates caches from what it routed"
)
_LATENCY: Final = "use queue-scorer and active-request-scorer: no latency is predicted"
_ONE_PROFILE: Final = "use single-profile-handler: one profile picks one worker for each request"
_DISAGGREGATED: Final = f"{_ONE_PROFILE}, with decode-filter where workers have roles"
_DECIDER: Final = "leave it out: no request is split between a prefill and a decode worker"
_PARSER: Final = "use openai-parser, or passthrough-parser for bodies that must not be parsed"
_ONE_PAGE: Final = "each worker has one page: use customMetrics of core-metrics-extractor for a number that the model server publishes"
_CLUSTERS: Final = "use {}: there is one cluster"

_BY_ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    _PREFIX: (
        "precise-prefix-cache-scorer",
        "p2p-source-producer",
    ),
    "use probabilistic-admitter, which refuses by load: no latency is predicted": ("latency-slo-admitter",),
    _LATENCY: (
        "latency-scorer",
        "predicted-latency-producer",
        "slo-headroom-tier-filter",
    ),
    _DISAGGREGATED: (
        "disagg-profile-handler",
        "disagg-headers-handler",
        "pd-profile-handler",
        "prefill-header-handler",
    ),
    f"{_DECIDER}, so no revisions have to match; for its headerSelectors use header-label-affinity-scorer": (
        "disaggregatedset-rollout-screener",
    ),
    "it is part of the Go picker's tests alone; use single-profile-handler": ("test-profile-handler",),
    _DECIDER: ("prefix-based-pd-decider", "always-disagg-pd-decider", "always-disagg-multimodal-decider"),
    _PARSER: ("sglanghttp-parser", "vertexai-parser", "vllmgrpc-parser"),
    _ONE_PAGE: ("dcgm-data-source", "dcgm-extractor"),
    "leave it out: answers are not parsed": ("request-attribute-reporter",),
    "leave it out: images are not parsed": (
        "mm-embeddings-cache-producer",
        "mm-embeddings-cache-scorer",
    ),
}

_MULTICLUSTER: Final[Mapping[str, str]] = {
    "multicluster-approx-prefix-cache-producer": "approx-prefix-cache-producer",
    "multicluster-file-discovery": "file-discovery",
    "multicluster-kv-cache-utilization-scorer": "kv-cache-utilization-scorer",
    "multicluster-metrics-data-source": "metrics-data-source",
    "multicluster-metrics-extractor": "core-metrics-extractor",
    "multicluster-prefix-cache-scorer": "prefix-cache-scorer",
    "multicluster-queue-scorer": "queue-scorer",
    "multicluster-session-affinity-filter": "session-affinity-filter",
}

GO_ONLY: Final[Mapping[str, str]] = {
    name: advice for advice, names in _BY_ADVICE.items() for name in names
} | {name: _CLUSTERS.format(one) for name, one in _MULTICLUSTER.items()}
"""The remedy for each type, for the error when a file names one."""


def unknown_type(name: str, installed: Iterable[str]) -> str:
    """The problem of a type that is not there. `installed`: those that packages declare."""
    if (instead := GO_ONLY.get(name)) is not None:
        return f"{name!r} is a plugin of the Go picker that adsum does not have; {instead}"
    known = (*PLUGINS, *installed)
    near = difflib.get_close_matches(name[:100], (*known, *GO_ONLY), n=1)
    problem = f"{name[:60]!r} is not a plugin type; {did_you_mean(name, near or known)}"
    if near and near[0] in GO_ONLY:
        return f"{problem} That is a plugin of the Go picker that adsum does not have; {GO_ONLY[near[0]]}"
    return problem
