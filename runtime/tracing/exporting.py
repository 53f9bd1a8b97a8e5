"""Sends recorded spans where OTEL_* variables say, from the SDK's own thread, and says once when it cannot."""

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)

from runtime.errors import AdsumError
from runtime.quoting import quoted
from runtime.tracing.ended_spans import SpanOrigin, ended
from runtime.tracing.recording import Ended

_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
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
            reason = self._hide(self._sdk.said)[:_MAX_REASON] or "no reason was given"
            if not self.problem:
                log.warning("traces cannot be sent, their spans are lost until they can: %s", reason)
            self.problem = reason
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class Exporting:
    """Where spans go when they end, and the exporter behind it. `exporter` None: to nobody."""

    def __init__(self, service: str, scope: str, version: str, environment: Mapping[str, str]) -> None:
        sdk = SdkLog()
        library = logging.getLogger("opentelemetry")
        library.handlers, library.propagate = [sdk], False
        # a full queue is a warning for each span
        logging.getLogger("opentelemetry.sdk").setLevel(logging.ERROR)
        made = _exporter(environment)
        self.exporter: WatchedExporter | None = None
        self.ended: Ended = lambda span, at: None
        if made is not None:
            self.exporter = WatchedExporter(made, sdk, _hiding(environment))
            self._processor = _batches(self.exporter)
            self.ended = ended(made, self._processor, SpanOrigin(_resource(service, version), scope))

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
    except (ValueError, OSError) as error:  # a timeout that is no number, a certificate that is no file
        raise TracingError(f"OTEL_EXPORTER_OTLP_*: {error}; see OpenTelemetry's OTLP exporter") from error


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
    """Removes user and password of an endpoint from what the exporter says about it."""
    endpoints = [
        urlsplit(environment.get(name, "")).netloc
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ]
    secrets = [netloc.rpartition("@")[0] for netloc in endpoints if "@" in netloc]

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "...")
        return text

    return hide
