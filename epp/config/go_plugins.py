"""The Go picker's plugin types that are not supported, and what a file can use instead (pure).

Names: llm-d-router, cmd/epp/runner/runner.go, August 2026.
"""

from collections.abc import Mapping
from typing import Final

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
        "precise-prefix-cache-producer",
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
