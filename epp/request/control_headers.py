"""Names the request headers that the picker reads; those that control it or a worker are removed from requests. Pure.

llm-d's sidecar forwards to the address in `x-prefiller-host-port`: a client that could set it would reach any address.
"""

import re
from collections.abc import Mapping
from typing import Final

MOST_TEXT: Final = 200
"""Characters that are kept of a text that a client or a data plane chose."""
REQUEST_ID: Final = "x-request-id"
DESTINATION: Final = "x-gateway-destination-endpoint"
FALLBACK: Final = "x-gateway-destination-endpoint-fallback"
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SCORES: Final = "x-gateway-destination-endpoint-scores"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
MODEL_REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
TTFT_SLO: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
"""The current name and its older alias, which counts if the first is absent."""
RECORD: Final = "x-adsum-record-decision"
"""With any value: the decision about this request is recorded whole."""

PREFILL_FALLBACK: Final = "x-adsum-prefill-fallback"
"""In an answer, from the decode worker's sidecar: it computed the prompt too, for this reason."""

DATA_PLANE_ONLY: Final = (FALLBACK, SERVED, SUBSET)
"""Set by the data plane and the picker only; not even the picker reads a client's."""
_PREFIXES: Final = ("x-llm-d-", "x-gateway-")
_OTHERS: Final = frozenset(
    {RECORD, TTFT_SLO[1], "x-slo-tpot-ms", "x-prefiller-host-port", "x-encoder-hosts-ports"}
    | {"x-data-parallel-host-port", "x-kv-cache-source-host-port"}
)
CLIENT_HEADERS: Final = frozenset({*OBJECTIVE, *FAIRNESS_ID, *MODEL_REWRITE, *TTFT_SLO})
"""Control headers that clients may send to the picker."""


# bounded: at most 63 characters
_MILLISECONDS: Final = re.compile(r"\+?[0-9]{1,60}")
_MOST_MILLISECONDS: Final = (2**63 - 1) // 10**6
"""Go counts a duration in nanoseconds, as an int64."""


def ttft_slo(headers: Mapping[str, str]) -> float | None:
    """Seconds until its first token is due, as the client says; None: it does not, or not as a whole number of milliseconds."""
    text = headers.get(TTFT_SLO[0], headers.get(TTFT_SLO[1], ""))
    found = _MILLISECONDS.fullmatch(text.strip()) if len(text) < 64 else None
    milliseconds = None if found is None else int(found[0])
    return None if milliseconds is None or milliseconds > _MOST_MILLISECONDS else milliseconds / 1000.0


def is_control_header(name: str) -> bool:
    """Whether a request header of this lower-case name is removed. The destination header is overwritten instead."""
    return (name.startswith(_PREFIXES) and name != DESTINATION) or name in _OTHERS
