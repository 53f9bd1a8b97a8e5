"""The pickers that are compared in real time: our configurations, and those of the Go picker's binary.

Where ENDPOINTS stands in a configuration, the run has the file of endpoints, for EVENTS the address that workers publish their
KV events to, and for RENDER the URL of one that gives the tokens of prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.picking.pickers import OURS, Kind, go_picker
from benchmarks.profiles import GO_DEFAULT, GO_PRECISE, go_sticky, over_endpoints_file
from benchmarks.routing.arms import ARMS, COUNTED, LEAST_COST
from benchmarks.routing.virtual import LIMITS

GO_ARMS: Final = ("the Go picker, default", "the Go picker, sticky", "the Go picker, precise")
PRECISE: Final = "least cost, exact"
PRECISE_FILE: Final = "the Go picker's precise file"
BY_DEFAULT: Final = ("least cost", *GO_ARMS[:2])


@dataclass(frozen=True, slots=True)
class LiveArm:
    name: str
    kind: Kind
    config: str

    @property
    def response_body(self) -> str:
        """What Envoy shows of answers. The Go picker's chart says so for its own (config/charts/llm-d-router-standalone/
        values.yaml); it learns from it when a prompt is computed. Ours needs none.
        """
        return "NONE" if self.kind.binary is None else "FULL_DUPLEX_STREAMED"


def arms(binary: Path | None) -> Mapping[str, LiveArm]:
    """`binary`: the Go picker's; without it, only our arms."""
    ours = {name: ARMS[name].config for name in ("least cost", COUNTED)}
    ours |= {PRECISE: _LEAST_COST_PRECISE, PRECISE_FILE: GO_PRECISE}
    found = {name: LiveArm(name, OURS, _watched(config)) for name, config in ours.items()}
    if binary is not None:
        for name, config in zip(GO_ARMS, (GO_DEFAULT, _GO_STICKY, GO_PRECISE), strict=True):
            found[name] = LiveArm(name, go_picker(binary), _watched(config))
    return found


def _watched(config: str) -> str:
    return over_endpoints_file(config, watched=True)


_PEAK: Final = LIMITS.max_num_batched_tokens / (
    LIMITS.step_seconds + LIMITS.sequence_seconds + LIMITS.token_seconds * LIMITS.max_num_batched_tokens
)
"""Tokens a second of one full chunk in an idle worker, which the guides want measured for each machine
(llm-d, guides/recipes/router/calibration)."""

_GO_STICKY: Final = go_sticky(kv_tokens=LIMITS.kv_tokens, tokens_per_second=round(_PEAK))
"""The filter lets go where a worker has {18 s x peak} uncomputed tokens more than another: a count of tokens, so `--speed`
does not matter."""

_LEAST_COST_PRECISE: Final = LEAST_COST.replace("{optional: true}", "{kvEventsConfig: {zmqEndpoint: EVENTS}}")
