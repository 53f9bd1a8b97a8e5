"""Sends recorded spans, in OpenTelemetry's form, where OTEL_* variables say, from the SDK's own thread, and says once when it
cannot.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from adsum.errors import AdsumError
from adsum.quoting import printable, quoted
from adsum.tracing.span import AttributeValue, Ended, Span

_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_MAX_REASON: Final = 300

log = logging.getLogger("tracing")


class TracingError(AdsumError):
    """Traces were asked for and cannot be recorded; the text says what to do."""


class SdkLog(logging.Handler):
    """Keeps the first thing that OpenTelemetry logged since `said` was emptied, the cause; it logs each try of each batch."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.said = self.said or record.getMessage()


class WatchedExporter(SpanExporter):
    """Logs when spans cannot be sent, and when they can again. `hide`: removes secrets from a reason."""

    def __init__(self, exporter: SpanExporter, sdk: SdkLog, hide: Callable[[str], str]) -> None:
        self._exporter = exporter
        self._sdk = sdk
        self._hide = hide
        self.sent = 0
        self.lost = 0
        self.problem = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._sdk.said = ""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
            if self.problem:
                log.warning("traces are sent again; %d spans were lost", self.lost)
            self.problem = ""
        else:
            self.lost += len(spans)
            reason = printable(self._hide(self._sdk.said), _MAX_REASON) or "no reason was given"
            if not self.problem:
                log.warning("traces cannot be sent, their spans are lost until they can: %s", reason)
            self.problem = reason
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class Exporting:
    """Hands spans to `exporter` when they end; None: to nobody."""

    def __init__(self, service: str, scope: str, version: str, environment: Mapping[str, str]) -> None:
        sdk = SdkLog()
        library = logging.getLogger("opentelemetry")
        library.handlers, library.propagate = [sdk], False
        sdk_library = logging.getLogger("opentelemetry.sdk")
        sdk_library.setLevel(logging.NOTSET)
        made = _exporter(environment)
        self.exporter: WatchedExporter | None = None
        self.ended: Ended = lambda span, at: None
        if made is not None:
            self.exporter = WatchedExporter(made, sdk, _hiding(environment))
            self._processor = _batches(self.exporter)
            self.ended = ended(self._processor, _resource(service, version), scope)
        if sdk.said:
            ignored = quoted(_hiding(environment)(sdk.said), _MAX_REASON)
            log.warning("a variable OTEL_* is ignored, OpenTelemetry says: %s", ignored)
        # a full queue is a warning for each span
        sdk_library.setLevel(logging.ERROR)

    def close(self, timeout: float) -> None:
        """Send what is recorded, for `timeout` seconds at most. Blocks."""
        if self.exporter is None:
            return
        flushing = threading.Thread(target=self._processor.shutdown, name="flush traces", daemon=True)
        flushing.start()
        flushing.join(timeout)
        if flushing.is_alive():
            self.exporter.shutdown()  # wakes a thread that waits to try again


def _resource(service: str, version: str) -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before what we say."""
    own = Resource({SERVICE_NAME: service, SERVICE_VERSION: version})
    return own.merge(OTELResourceDetector().detect())


def _exporter(environment: Mapping[str, str]) -> SpanExporter | None:
    kind = environment.get("OTEL_TRACES_EXPORTER", "") or "otlp"
    if kind == "none":
        return None
    if kind == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    if kind != "otlp":
        raise TracingError(f"OTEL_TRACES_EXPORTER is {quoted(kind)}; expected otlp, console or none")
    try:
        return _otlp(environment.get(_TRACES_PROTOCOL) or environment.get(_PROTOCOL) or "grpc")
    except AdsumError:
        raise
    except Exception as error:  # the exporter has errors of its own, also without a common base
        problem = quoted(_hiding(environment)(str(error)), _MAX_REASON)
        raise TracingError(f"OTEL_EXPORTER_OTLP_*: {problem}; see OpenTelemetry's OTLP exporter") from error


def _batches(exporter: SpanExporter) -> BatchSpanProcessor:
    try:
        return BatchSpanProcessor(exporter)
    except ValueError as error:
        raise TracingError(f"OTEL_BSP_*: {error}") from error


def _otlp(protocol: str) -> SpanExporter:
    """gRPC by default, as in the Go picker. Each takes 100 ms to import."""
    made: Any
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        made = OverGrpc()
    elif protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        made = OverHttp()
    else:
        raise TracingError(f"{_PROTOCOL} is {quoted(protocol)}; expected grpc or http/protobuf")
    exporter: SpanExporter = made
    return exporter


def _hiding(environment: Mapping[str, str]) -> Callable[[str], str]:
    """Removes from what the exporter says user and password of an endpoint, and headers: they hold tokens."""
    secrets = [text for name in _HEADERS for text in _parts_of_headers(environment.get(name, ""))]
    for name in _ENDPOINTS:
        if user := environment.get(name, "").rpartition("@")[0].rpartition("//")[2]:
            secrets.append(user)
    secrets.sort(key=len, reverse=True)  # a part of another one comes after it

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "...")
        return text

    return hide


def _parts_of_headers(headers: str) -> Iterator[str]:
    """`a=b,c=d`: each whole, and its value as it is sent."""
    # bounded: the operator's environment
    for header in headers.split(","):
        value = header.partition("=")[2]
        yield from {text for text in (header.strip(), value.strip(), unquote(value).strip()) if text}


_FLAGS: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)


def ended(processor: SpanProcessor, resource: Resource, scope: str) -> Ended:
    """A callback that gives spans to `processor`. `resource`: the program; `scope`: the code that makes the spans."""
    origin = InstrumentationScope(scope)
    return lambda span, at: processor.on_end(_readable(span, at, resource, origin))


def _readable(span: Span, ended: int, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """The span as exporters read it. `ended`: nanoseconds since the Unix epoch."""
    state = trace.TraceState.from_header([span.state]) if span.state else None
    failure = None if span.failure is None else _encodable(span.failure)
    return ReadableSpan(
        _encodable(span.name),
        _context(span.trace_id, span.span_id, state, remote=False),
        _context(span.trace_id, span.parent_id, state, remote=span.remote) if span.parent_id else None,
        resource,
        {name: _encodable_value(value) for name, value in span.attributes.items()},
        kind=trace.SpanKind[span.kind.upper()],
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
