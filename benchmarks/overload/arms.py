"""The pickers that are compared, and the configuration that they share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.overload.load import CONCURRENCY, PRIORITIES

OURS, GO, WITHOUT = "adsum", "the Go picker", "adsum, no flow control"

_PLUGINS: Final = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: active-request-scorer
- type: max-score-picker
- type: concurrency-detector
  parameters: {{maxConcurrency: {CONCURRENCY}}}
"""
_PROFILE: Final = """\
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: max-score-picker}
"""
_WITHOUT: Final = f"""\
{_PLUGINS}{_PROFILE}\
saturationDetector: {{pluginRef: concurrency-detector}}
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """`binary`: the Go picker's, None for ours."""

    name: str
    binary: Path | None
    config: str

    @property
    def response_body(self) -> str:
        """What Envoy shows of answers: the Go picker's chart shows them whole, ours needs only their end."""
        return "NONE" if self.binary is None else "FULL_DUPLEX_STREAMED"


def flow_control(request_ttl: str, no_endpoint_ttl: str = "60s") -> str:
    """The configuration of both pickers. The lowest priority may use 75 % of the pool, the highest all of it. Few requests
    below 0 wait, and the others go when their time is over."""
    bands = "".join(
        f"  - {{priority: {priority}, maxRequests: {50 if priority < 0 else 5000}, "
        "fairnessPolicyRef: round-robin-fairness-policy}\n"
        for priority in PRIORITIES.values()
    )
    return f"""\
{_PLUGINS}\
- type: priority-holdback-policy
  parameters: {{minCeiling: 0.75}}
- type: round-robin-fairness-policy
featureGates: [flowControl]
{_PROFILE}\
flowControl:
  defaultRequestTTL: {request_ttl}
  noEndpointRequestTTL: {no_endpoint_ttl}
  saturationDetector: {{pluginRef: concurrency-detector}}
  usageLimitPolicyPluginRef: priority-holdback-policy
  priorityBands:
{bands}"""


def arms(binary: Path | None, request_ttl: str) -> list[Arm]:
    """`binary`: the Go picker's; without it, only ours."""
    held = flow_control(request_ttl)
    found = [Arm(WITHOUT, None, _WITHOUT), Arm(OURS, None, held)]
    return found if binary is None else [*found, Arm(GO, binary.resolve(), held)]
