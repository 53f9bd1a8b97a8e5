"""Gives ended spans to OpenTelemetry's SDK: encoded already where its exporter takes that, as spans of its own elsewhere."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, cast

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from runtime.tracing.recording import Ended, RecordedSpan
from runtime.tracing.span import Kind
from runtime.tracing.span_message import delimited, span_message

_KINDS: Final[Mapping[Kind, trace.SpanKind]] = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_FLAGS: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_ENCODER: Final = "encode_spans"
"""What both OTLP exporters call, by this name of their module; they have no other seam for it."""


class SpanOrigin:
    """The program whose spans they are."""

    def __init__(self, resource: Resource, scope: str) -> None:
        self.resource = resource
        self.scope = InstrumentationScope(scope)
        context = trace.SpanContext(1, 1, is_remote=False, trace_flags=_FLAGS)
        some = ReadableSpan("", context, resource=resource, instrumentation_scope=self.scope)
        resource_spans = encode_spans([some]).resource_spans[0]
        scope_spans = resource_spans.scope_spans[0]
        del scope_spans.spans[:]
        self._scope_fields = scope_spans.SerializeToString()
        del resource_spans.scope_spans[:]
        self._resource_fields = resource_spans.SerializeToString()

    def request(self, messages: Sequence[bytes]) -> bytes:
        """An ExportTraceServiceRequest with these spans."""
        spans = b"".join([delimited(b"\x12", one) for one in messages])
        scope_spans = delimited(b"\x12", self._scope_fields + spans)
        return delimited(b"\x0a", self._resource_fields + scope_spans)


class EncodedSpan:
    """What a span processor and `_encode` read of a span."""

    __slots__ = ("message", "origin")

    context: ClassVar = trace.SpanContext(1, 1, is_remote=False, trace_flags=_FLAGS)
    """Tells a span processor that the span is recorded."""

    def __init__(self, origin: SpanOrigin, message: bytes) -> None:
        self.origin = origin
        self.message = message


def ended(exporter: SpanExporter, processor: SpanProcessor, origin: SpanOrigin) -> Ended:
    """What gives spans to `processor`, which gives them to `exporter`."""
    module = sys.modules[type(exporter).__module__]
    if not hasattr(module, _ENCODER):
        return lambda span, at: processor.on_end(readable(span, at, origin))
    setattr(module, _ENCODER, _encode)

    def give(span: RecordedSpan, at: int) -> None:
        processor.on_end(cast(ReadableSpan, EncodedSpan(origin, span_message(span, at))))

    return give


def _encode(spans: Sequence[Any]) -> ExportTraceServiceRequest:
    """In place of the SDK's `encode_spans`; a batch comes from one processor, so from one origin."""
    if not spans or not isinstance(spans[0], EncodedSpan):
        return encode_spans(spans)
    return ExportTraceServiceRequest.FromString(spans[0].origin.request([one.message for one in spans]))


def readable(span: RecordedSpan, ended: int, origin: SpanOrigin) -> ReadableSpan:
    """The SDK's form of it; `ended`: Unix nanoseconds."""
    state = trace.TraceState.from_header([span.state]) if span.state else None
    failed = span.failure is not None
    return ReadableSpan(
        span.name,
        _context(span.trace_id, span.span_id, state, remote=False),
        _context(span.trace_id, span.parent_id, state, remote=span.remote) if span.parent_id else None,
        origin.resource,
        span.attributes,
        kind=_KINDS[span.kind],
        status=trace.Status(trace.StatusCode.ERROR if failed else trace.StatusCode.UNSET, span.failure),
        start_time=span.began,
        end_time=ended,
        instrumentation_scope=origin.scope,
    )


def _context(
    trace_id: bytes, span_id: bytes, state: trace.TraceState | None, *, remote: bool
) -> trace.SpanContext:
    ids = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
    return trace.SpanContext(*ids, is_remote=remote, trace_flags=_FLAGS, trace_state=state)
