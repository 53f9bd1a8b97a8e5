"""What keeps the batch from the places of interactive users: a gate that reads the workers' load, or flow control as well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.demo_batch.pool import SEQUENCES

BASELINE: Final = "0.25"
"""B of the gate: the share of the pool that is kept free for interactive requests."""
_OBJECTIVE: Final = "batch"


@dataclass(frozen=True, slots=True)
class Protection:
    """`gate`: parameters of endpoint-scrape, besides the page and the baseline. `queue`: more fields of the queue.

    `picker`, `envoy`: more flags of the picker, and of `envoy-config`.
    """

    gate: Mapping[str, Any]
    queue: Mapping[str, Any] = field(default_factory=dict)
    picker: Sequence[str] = ()
    envoy: Sequence[str] = ()


BY_LOAD: Final = Protection(
    {
        "metric": ["llm_d_epp_per_endpoint_queue_size", "llm_d_epp_per_endpoint_running_requests"],
        "max_count_per_pod": SEQUENCES,
        "lag": "1.5s",
    }
)
"""The lag: seconds until a sent request shows on the picker's page, also when hundreds are sent at once on a small machine."""
BY_FLOW_CONTROL: Final = Protection(
    {"metric": "llm_d_epp_flow_control_pool_saturation", "max_concurrency": SEQUENCES, "lag": "0.5s"},
    queue={"objective": _OBJECTIVE},
    picker=("--config-file", str(Path(__file__).with_name("picker.yaml")), "--objective", f"{_OBJECTIVE}=-1"),
    envoy=("--response-trailer", "SEND"),
)
"""The picker holds back what a gate let through too early. It counts requests in flight itself, to the end of each answer."""
