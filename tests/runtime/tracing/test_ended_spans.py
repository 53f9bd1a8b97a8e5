"""OpenTelemetry's exporters get spans in the form that each takes."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from runtime.tracing.ended_spans import EncodedSpan, SpanOrigin, ended
from runtime.tracing.recording import Recorder, SpanRecorder
from runtime.tracing.sampling import Sampling
from tests.otlp_collector import grpc_collector


class Kept(SpanProcessor):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@contextmanager
def kept(exporter: SpanExporter, *services: str) -> Iterator[list[Any]]:
    """One span of each program, as it comes to the processor."""
    processor = Kept()
    for service in services:
        origin = SpanOrigin(Resource({"service.name": service}), "adsum.test")
        recorder = Recorder(ended(exporter, processor, origin), random.Random(1))
        span = SpanRecorder(recorder, Sampling(1.0)).begin("gateway.request", "server", {}).span
        assert span is not None
        span.end()
    try:
        yield processor.spans
    finally:
        exporter.shutdown()


@pytest.mark.parametrize("exporter", [OverGrpc, OverHttp])
def test_the_otlp_exporters_take_encoded_spans(exporter: type[SpanExporter]) -> None:
    with kept(exporter(), "test") as spans:
        assert [type(span) for span in spans] == [EncodedSpan]
        assert spans[0].context.trace_flags.sampled


def test_the_console_takes_spans_of_the_sdk() -> None:
    with kept(ConsoleSpanExporter(), "test") as (span,):
        assert isinstance(span, ReadableSpan)
        assert '"service.name": "test"' in span.to_json()


def test_an_exporter_still_takes_spans_of_others() -> None:
    """A plugin may use one of its own in this process."""
    with grpc_collector() as collector:
        exporter = OverGrpc(endpoint=collector.url)
        with kept(exporter, "first") as encoded, kept(ConsoleSpanExporter(), "second") as plain:
            assert exporter.export(encoded) is SpanExportResult.SUCCESS
            assert exporter.export(plain) is SpanExportResult.SUCCESS
        assert [span.service for span in collector.spans] == ["first", "second"]
