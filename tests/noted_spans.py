"""A tracer that keeps its spans as they are told, without OpenTelemetry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from adsum.tracing.span import AttributeValue, Kind, Trace
from adsum.tracing.trace_context import TraceContext


@dataclass
class Noted:
    """A span; `all`: those of its tracer, in the order in which they began."""

    all: list["Noted"] = field(repr=False)
    name: str
    kind: Kind = "internal"
    number: int = 1
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    failure: str | None = None
    ends: int = 0

    @property
    def context(self) -> TraceContext:
        return TraceContext(1, self.number, sampled=True)

    def child(self, name: str, kind: Kind = "internal", *, began_ns: int | None = None) -> "Noted":
        self.all.append(Noted(self.all, name, kind, len(self.all) + 1))
        return self.all[-1]

    def set(self, name: str, value: AttributeValue) -> None:
        self.attributes[name] = value

    def fail(self, reason: str) -> None:
        self.failure = reason

    def end(self, at_ns: int | None = None) -> None:
        self.ends += 1


class Notes:
    """A tracer that records everything."""

    def __init__(self) -> None:
        self.spans: list[Noted] = []

    def begin(
        self,
        name: str,
        kind: Kind,
        carrier: Mapping[str, str],
        trace_id: int = 0,
        *,
        began_ms: int | None = None,
    ) -> Trace:
        span = Noted(self.spans, name, kind, len(self.spans) + 1)
        self.spans.append(span)
        return Trace(span, span.context.traceparent, begins=True)
