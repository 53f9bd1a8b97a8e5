"""The built-in plugin types. Each declares itself beside its algorithm; a new one is a line here."""

from collections.abc import Mapping
from typing import Final

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
from epp.plugins.declaration import PluginDeclaration
from epp.scheduling.affinity.labels import CONTEXT_LENGTH_AWARE, HEADER_LABEL_AFFINITY_SCORER
from epp.scheduling.affinity.session_affinity import SESSION_AFFINITY_FILTER, SESSION_AFFINITY_SCORER
from epp.scheduling.affinity.sessions import AGENT_IDENTITY, SESSION_ID_PRODUCER
from epp.scheduling.affinity.topology import (
    TOPOLOGY_AFFINITY_FILTER,
    TOPOLOGY_AFFINITY_SCORER,
    TOPOLOGY_EXTRACTOR,
)
from epp.scheduling.burst.declaration import BURST_PREFIX_CACHE_PRODUCER
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
from epp.scheduling.in_flight_load.concurrency import CONCURRENCY_DETECTOR
from epp.scheduling.in_flight_load.declaration import INFLIGHT_LOAD_PRODUCER
from epp.scheduling.in_flight_load.prefix_affinity import PREFIX_CACHE_AFFINITY_FILTER
from epp.scheduling.in_flight_load.token_load import TOKEN_LOAD_SCORER
from epp.scheduling.pickers import MAX_SCORE_PICKER, RANDOM_PICKER, WEIGHTED_RANDOM_PICKER
from epp.scheduling.prefix.declarations import APPROX_PREFIX_CACHE_PRODUCER, PREFIX_CACHE_SCORER
from epp.scheduling.profile_handlers import (
    DATA_PARALLEL_PROFILE_HANDLER,
    HEADER_PROFILE_HANDLER,
    SINGLE_PROFILE_HANDLER,
)
from epp.scheduling.saturation import PROBABILISTIC_ADMITTER, UTILIZATION_DETECTOR
from epp.scheduling.scorers.in_flight_declaration import IN_FLIGHT_SCORER
from epp.scheduling.scorers.load_scorers import (
    ACTIVE_REQUEST_SCORER,
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
    INFLIGHT_LOAD_PRODUCER,
    *DATA_LAYER,
)
PLUGINS: Final[Mapping[str, PluginDeclaration]] = {declared.type: declared for declared in _DECLARED}
