"""Which request headers steer the picker or what stands behind it: those of a client go no further than the picker. Pure.

A sidecar that forwards to where `x-prefiller-host-port` says would otherwise send a client's request to any address.
"""

from typing import Final

DESTINATION: Final = "x-gateway-destination-endpoint"
FALLBACK: Final = "x-gateway-destination-endpoint-fallback"
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SCORES: Final = "x-gateway-destination-endpoint-scores"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
"""The name in use and its older alias, which counts where the first is absent."""

DATA_PLANE_ONLY: Final = (FALLBACK, SERVED, SUBSET)
"""What only the data plane and the picker say to each other: of a client not even the picker sees it."""
_PREFIXES: Final = ("x-llm-d-", "x-gateway-")
_OTHERS: Final = frozenset(
    {"x-slo-ttft-ms", "x-slo-tpot-ms", "x-prefiller-host-port", "x-encoder-hosts-ports"}
    | {"x-data-parallel-host-port", "x-kv-cache-source-host-port"}
)
CLIENT_HEADERS: Final = frozenset({*OBJECTIVE, *FAIRNESS_ID})
"""Those that clients have a reason to send."""


def is_control_header(name: str) -> bool:
    """Whether a request header of that name, in lower case, is taken off; the destination is overwritten instead."""
    return (name.startswith(_PREFIXES) and name != DESTINATION) or name in _OTHERS
