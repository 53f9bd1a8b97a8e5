"""The built-in plugin types. Each is declared beside its algorithm, and found in the modules that are listed here.

The error for an unknown type stands here too: for a type of the Go picker that is not supported it names what a file can use
instead. Their names: llm-d-router, cmd/epp/runner/runner.go, August 2026.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from adsum.config.problems import did_you_mean
from epp.config import data_layer
from epp.flow_control import eviction, fairness, orderings, program_aware, usage_limits
from epp.plugins.declaration import PluginDeclaration, Role
from epp.scheduling import conformance, endpoint_attribute, filters, pickers, profile_handlers, saturation
from epp.scheduling.affinity import labels, session_affinity, sessions, topology
from epp.scheduling.burst import producer as burst
from epp.scheduling.disaggregation import deciders, least_cost_profile_handler, rollout
from epp.scheduling.disaggregation import handler as disaggregation
from epp.scheduling.in_flight_load import plugins as in_flight_load
from epp.scheduling.in_flight_load import prefix_affinity
from epp.scheduling.kv_events import declaration as kv_events
from epp.scheduling.prefix import declarations as prefix
from epp.scheduling.scorers import load_scorers, no_hit_lru
from epp.scheduling.work_ahead import declaration as work_ahead
from epp.scheduling.work_ahead import slo_admitter

MODULES: Final = (
    work_ahead,
    load_scorers,
    prefix,
    no_hit_lru,
    session_affinity,
    labels,
    in_flight_load,
    prefix_affinity,
    topology,
    endpoint_attribute,
    filters,
    conformance,
    pickers,
    saturation,
    slo_admitter,
    profile_handlers,
    disaggregation,
    deciders,
    least_cost_profile_handler,
    rollout,
    sessions,
    fairness,
    program_aware,
    orderings,
    usage_limits,
    eviction,
    burst,
    kv_events,
    data_layer,
)
"""Each declares plugin types; those of one module in the order in which they stand there."""


def _declared() -> Iterator[PluginDeclaration]:
    for module in MODULES:
        for value in vars(module).values():
            if isinstance(value, PluginDeclaration):
                yield value
            elif isinstance(value, tuple) and value and isinstance(value[0], PluginDeclaration):
                yield from value


PLUGINS: Final[Mapping[str, PluginDeclaration]] = {declared.type: declared for declared in _declared()}
DEFAULTS: Final[Mapping[Role, str]] = {one.role: one.type for one in PLUGINS.values() if one.is_default}
"""By role the plugin type that a file gets if it names none."""

_PREFIX: Final = (
    "use prefix-cache-scorer without prefixMatchInfoProducerName: it estimates caches from what it routed"
)
_LATENCY: Final = (
    "use least-cost-scorer, which foresees first tokens and needs no predictor; nothing foresees later tokens"
)
_PARSER: Final = "use openai-parser, or passthrough-parser for bodies that must not be parsed"
_ONE_PAGE: Final = "each worker has one page: use customMetrics of core-metrics-extractor for a number that the model server publishes"
_CLUSTERS: Final = "use {}: there is one cluster"

_BY_ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    _PREFIX: ("precise-prefix-cache-scorer", "p2p-source-producer"),
    _LATENCY: ("latency-scorer", "predicted-latency-producer", "slo-headroom-tier-filter"),
    "it is part of the Go picker's tests alone; use single-profile-handler": ("test-profile-handler",),
    _PARSER: ("sglanghttp-parser", "vertexai-parser", "vllmgrpc-parser"),
    _ONE_PAGE: ("dcgm-data-source", "dcgm-extractor"),
    "leave it out: answers are not parsed": ("request-attribute-reporter",),
    "leave it out: images are not parsed": ("mm-embeddings-cache-producer", "mm-embeddings-cache-scorer"),
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
