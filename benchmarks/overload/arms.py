"""The pickers that are compared, and the configuration that they share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.overload.load import CONCURRENCY, PRIORITIES

OURS, GO, WITHOUT = "adsum", "the Go picker", "adsum, no flow control"
BY_PAGES: Final = ("adsum, by the workers' pages", "the Go picker, by the workers' pages")

_PLUGINS: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: active-request-scorer
- type: max-score-picker
"""
_DETECTOR: Final = f"""\
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
{_PLUGINS}{_DETECTOR}{_PROFILE}\
flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}}}
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """`binary`: the Go picker's, None for ours. `response_trailer`: what Envoy's ext_proc filter does at the end of answers."""

    name: str
    binary: Path | None
    config: str
    response_trailer: str = "SEND"

    @property
    def response_body(self) -> str:
        """What Envoy shows of answers: the Go picker's chart shows them whole, ours needs only their end."""
        return "NONE" if self.binary is None else "FULL_DUPLEX_STREAMED"


def flow_control(request_ttl: str, no_endpoint_ttl: str = "60s", *, by_pages: bool = False) -> str:
    """The configuration of both pickers. The pool is full by what is in flight, or by the workers' pages: the default.

    The lowest priority may use a part of the pool, the highest all of it. Few requests below 0 wait, and the others go when
    their time is over.
    """
    bands = "".join(
        f"  - {{priority: {priority}, maxRequests: {50 if priority < 0 else 5000}, "
        "fairnessPolicyRef: round-robin-fairness-policy}\n"
        for priority in PRIORITIES.values()
    )
    detector = "" if by_pages else "  saturationDetector: {pluginRef: concurrency-detector}\n"
    return f"""\
{_PLUGINS}{"" if by_pages else _DETECTOR}\
- type: priority-holdback-policy
  parameters: {{minCeiling: {0.2 if by_pages else 0.75}}}
- type: round-robin-fairness-policy
featureGates: [flowControl]
{_PROFILE}\
flowControl:
  defaultRequestTTL: {request_ttl}
  noEndpointRequestTTL: {no_endpoint_ttl}
{detector}\
  usageLimitPolicyPluginRef: priority-holdback-policy
  priorityBands:
{bands}"""


def arms(binary: Path | None, request_ttl: str) -> list[Arm]:
    """`binary`: the Go picker's; without it, only ours. By pages ours needs no end of answers."""
    counted, by_pages = flow_control(request_ttl), flow_control(request_ttl, by_pages=True)
    go = None if binary is None else binary.resolve()
    found = [
        Arm(WITHOUT, None, _WITHOUT),
        Arm(OURS, None, counted),
        Arm(GO, go, counted),
        Arm(BY_PAGES[0], None, by_pages, "SKIP"),
        Arm(BY_PAGES[1], go, by_pages),
    ]
    return [arm for arm in found if go is not None or arm.name not in (GO, BY_PAGES[1])]
