"""Decides which traces are recorded, as OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say. Pure.

https://opentelemetry.io/docs/languages/sdk-configuration/general/
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from adsum.quoting import quoted
from adsum.tracing.trace_context import TraceContext

SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARGUMENT: Final = "OTEL_TRACES_SAMPLER_ARG"
DEFAULT_RATIO: Final = 0.1
"""The Go picker's; OpenTelemetry's own default is to record everything."""
_LOW_BITS: Final = (1 << 64) - 1
_ABOVE_DIGITS: Final = "g"


@dataclass(frozen=True, slots=True)
class Sampling:
    """`ratio` of the traces that begin here; with `parent_based`, the sender of a request decides about its trace.

    `below`: a trace that begins here is recorded if the last 16 digits of its id come before this text.
    """

    ratio: float = DEFAULT_RATIO
    parent_based: bool = True
    below: str = field(init=False, repr=False, compare=False)
    _below: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        below = round(self.ratio * (_LOW_BITS + 1))
        object.__setattr__(self, "_below", below)
        object.__setattr__(self, "below", f"{below:016x}" if below <= _LOW_BITS else _ABOVE_DIGITS)

    def records(self, parent: TraceContext | None, trace_id: int) -> bool:
        if parent is not None and self.parent_based:
            return parent.sampled
        # TraceIdRatioBased of OpenTelemetry's SDKs: each process that asks decides the same
        return trace_id & _LOW_BITS < self._below


_SAMPLERS: Final[Mapping[str, Sampling]] = {
    "always_on": Sampling(1.0, parent_based=False),
    "always_off": Sampling(0.0, parent_based=False),
    "parentbased_always_on": Sampling(1.0),
    "parentbased_always_off": Sampling(0.0),
}
_BY_RATIO: Final = {"traceidratio": False, "parentbased_traceidratio": True}
"""Samplers that take a ratio, and whether they are parent-based."""


def read_sampling(environment: Mapping[str, str]) -> tuple[Sampling, str | None]:
    """The sampling, and what was wrong with the variables; None: nothing. As in the Go picker, a wrong value is the default."""
    name = environment.get(SAMPLER, "") or "parentbased_traceidratio"
    if (fixed := _SAMPLERS.get(name)) is not None:
        return fixed, None
    if name not in _BY_RATIO:
        known = ", ".join([*_BY_RATIO, *_SAMPLERS])
        return (
            Sampling(),
            f"{SAMPLER} is {quoted(name)}; expected one of {known}; {DEFAULT_RATIO:g} of the traces are recorded",
        )
    text = environment.get(SAMPLER_ARGUMENT, "")
    try:
        ratio = float(text) if text else DEFAULT_RATIO
    except ValueError:
        ratio = -1.0
    if 0.0 <= ratio <= 1.0:
        return Sampling(ratio, _BY_RATIO[name]), None
    fault = f"{SAMPLER_ARGUMENT} is {quoted(text)}; expected a ratio from 0 to 1; it is {DEFAULT_RATIO:g}"
    return Sampling(parent_based=_BY_RATIO[name]), fault
