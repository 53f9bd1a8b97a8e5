"""Makes an ended span one of OpenTelemetry's SDK, whose processors and exporters take no other form."""

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from adsum.tracing.recording import Ended, RecordedSpan
from adsum.tracing.span import AttributeValue, Kind

_KINDS: Final[Mapping[Kind, trace.SpanKind]] = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_FLAGS: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)


def ended(processor: SpanProcessor, resource: Resource, scope: str) -> Ended:
    """What gives spans to `processor`. `resource`: the program; `scope`: the code that makes the spans."""
    origin = InstrumentationScope(scope)
    return lambda span, at: processor.on_end(_readable(span, at, resource, origin))


def _readable(
    span: RecordedSpan, ended: int, resource: Resource, scope: InstrumentationScope
) -> ReadableSpan:
    """`ended`: Unix nanoseconds."""
    state = trace.TraceState.from_header([span.state]) if span.state else None
    failure = None if span.failure is None else _encodable(span.failure)
    return ReadableSpan(
        _encodable(span.name),
        _context(span.trace_id, span.span_id, state, remote=False),
        _context(span.trace_id, span.parent_id, state, remote=span.remote) if span.parent_id else None,
        resource,
        {name: _encodable_value(value) for name, value in span.attributes.items()},
        kind=_KINDS[span.kind],
        status=trace.Status(trace.StatusCode.UNSET if failure is None else trace.StatusCode.ERROR, failure),
        start_time=span.began,
        end_time=ended,
        instrumentation_scope=scope,
    )


def _encodable_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, bool | int | float):
        return value
    return [_encodable(one) if isinstance(one, str) else one for one in value]  # type: ignore[return-value]


def _encodable(text: str) -> str:
    """Without lone surrogates: protobuf refuses them, and with them the whole batch of spans."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _context(
    trace_id: bytes, span_id: bytes, state: trace.TraceState | None, *, remote: bool
) -> trace.SpanContext:
    ids = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
    return trace.SpanContext(*ids, is_remote=remote, trace_flags=_FLAGS, trace_state=state)
