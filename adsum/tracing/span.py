"""Decides which traces are recorded, as OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say, records their spans, and hands
each over when it ends; a request that is not recorded has none.

A span of OpenTelemetry's SDK takes 30 µs to begin, describe and end, one of these 5 (benchmarks/picking/README.md, tracing).
https://opentelemetry.io/docs/languages/sdk-configuration/general/
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from adsum.quoting import quoted
from adsum.tracing.trace_context import NOT_RECORDED, TRACEPARENT, TRACESTATE, TraceContext, parse_traceparent

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[float]
Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
"""https://opentelemetry.io/docs/concepts/signals/traces/#span-kind"""
MAX_TEXT: Final = 256
"""Characters of an attribute; clients choose some of them."""
MAX_STATE: Final = 512
"""Characters of a `tracestate` that is recorded: what a vendor should propagate at least (W3C Trace Context, 3.3.1.5)."""
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


class Span:
    """A part of a request's way that is recorded, from the call that made it to `end`, after which it stays as it is.

    Ids as bytes; `parent_id` is empty for the root of a trace. `remote`: the parent is of another process. `began`: Unix
    nanoseconds. `failure`: None unless the status is Error.
    """

    __slots__ = (
        "_tracer",
        "attributes",
        "began",
        "failure",
        "kind",
        "name",
        "parent_id",
        "remote",
        "span_id",
        "state",
        "trace_id",
    )

    def __init__(
        self, tracer: "Tracer", name: str, kind: Kind, trace_id: bytes, parent_id: bytes, began_ns: int | None
    ) -> None:
        self._tracer: Tracer | None = tracer
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = (tracer.bits(64) or 1).to_bytes(8, "big")
        self.parent_id = parent_id
        self.remote = False
        self.state = ""
        self.began = time.time_ns() if began_ns is None else began_ns
        self.attributes: dict[str, AttributeValue] = {}
        self.failure: str | None = None

    @property
    def context(self) -> TraceContext:
        return TraceContext(
            int.from_bytes(self.trace_id, "big"), int.from_bytes(self.span_id, "big"), sampled=True
        )

    def child(self, name: str, kind: Kind = "internal", *, began_ns: int | None = None) -> "Span":
        """A part of this part; `began_ns`: Unix nanoseconds, if it began before this call. RuntimeError after `end`."""
        tracer = self._tracer
        if tracer is None:
            raise RuntimeError(f"the span {name!r} begins in one that has ended")
        child = Span(tracer, name, kind, self.trace_id, self.span_id, began_ns)
        child.state = self.state
        return child

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute; long text is cut."""
        self.attributes[name] = value[:MAX_TEXT] if isinstance(value, str) else value

    def fail(self, reason: str) -> None:
        """Give it the status Error."""
        self.failure = reason[:MAX_TEXT]

    def end(self, at_ns: int | None = None) -> None:
        """`at_ns`: Unix nanoseconds, if it ended before this call."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.ended(self, time.time_ns() if at_ns is None else at_ns)


class Trace:
    """A tracer's decision about one request.

    `span`: None if nothing is recorded. `traceparent`: goes to the next process in place of the one that came; None: that
    one stays. `begins`: no valid one came.
    """

    __slots__ = ("begins", "span", "traceparent")

    def __init__(self, span: Span | None, traceparent: str | None, *, begins: bool) -> None:
        self.span = span
        self.traceparent = traceparent
        self.begins = begins


_AS_IT_CAME: Final = Trace(None, None, begins=False)

Ended: TypeAlias = Callable[[Span, int], None]
"""Gets a span, which does not change any more, and its end in Unix nanoseconds."""


class Tracer:
    """The tracer of a program that records: which requests have a span, and what their `traceparent` says."""

    def __init__(self, ended: Ended, rng: random.Random, sampling: Sampling) -> None:
        self.ended = ended
        self.bits = rng.getrandbits
        self._sampling = sampling
        self._below = sampling.below

    def begin(
        self,
        name: str,
        kind: Kind,
        carrier: Mapping[str, str],
        trace_id: int = 0,
        *,
        began_ms: int | None = None,
    ) -> Trace:
        """Begin this process' part of a trace; `carrier`: headers or metadata with lower-case names.

        `trace_id`: of a trace that begins here; 0: a random one. `began_ms`: Unix milliseconds, if it began before this call.
        """
        came = carrier.get(TRACEPARENT)
        if came is None and not trace_id:
            # most requests of a picker: decided by the digits that are sent anyway
            digits = self.bits(192).to_bytes(24, "big").hex()
            if digits[16:32] >= self._below:
                return Trace(None, f"00-{digits[:32]}-{digits[32:]}-00", begins=True)
            trace_id = int(digits[:32], 16)
        elif came is not None and self._sampling.parent_based and NOT_RECORDED.fullmatch(came) is not None:
            return _AS_IT_CAME
        parent = None if came is None else parse_traceparent(came)
        if parent is None:
            trace_id = trace_id or self.bits(128) or 1
            if not self._sampling.records(None, trace_id):
                return Trace(None, _unrecorded(trace_id, self.bits(64) or 1), begins=True)
            parent_id = b""
        elif self._sampling.records(parent, parent.trace_id):
            trace_id, parent_id = parent.trace_id, parent.span_id.to_bytes(8, "big")
        else:  # a decision of ours that differs from the sender's must be passed on
            told = _unrecorded(parent.trace_id, parent.span_id) if parent.sampled else None
            return Trace(None, told, begins=False)
        id_bytes = trace_id.to_bytes(16, "big")
        began_ns = None if began_ms is None else began_ms * 1_000_000
        span = Span(self, name, kind, id_bytes, parent_id, began_ns)
        if parent is not None:
            span.remote = True
            span.state = _state(carrier.get(TRACESTATE, ""))
        return Trace(span, f"00-{id_bytes.hex()}-{span.span_id.hex()}-01", begins=parent is None)


def _unrecorded(trace_id: int, span_id: int) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-00"


def _state(text: str) -> str:
    return text if len(text) <= MAX_STATE and text.isascii() and text.isprintable() else ""
