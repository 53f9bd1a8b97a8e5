"""The message of a span is, read again, the one that OpenTelemetry's SDK makes of the same span."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource

from runtime.tracing.ended_spans import SpanOrigin, readable
from runtime.tracing.recording import MAX_TEXT, RecordedSpan, Recorder, SpanRecorder
from runtime.tracing.sampling import Sampling
from runtime.tracing.span_message import span_message

ORIGIN = SpanOrigin(
    Resource({"service.name": "test", "service.version": "1"}, "https://schema"), "adsum.test"
)
PARENT = f"00-{7 << 100:032x}-{1:016x}-01"
HOSTILE = {  # as names: pytest-xdist cannot send a lone surrogate to its workers
    "surrogate": "\udcff",
    "surrogate in a text": "\ud800x",
    "control characters": "\x00\x1b[2J",
    "long": "ü" * 100_000,
    "long in ASCII": "a" * 100_000,
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NUMBER = st.integers(-(2**63), 2**63 - 1)
VALUE = st.one_of(
    TEXT,
    st.booleans(),
    NUMBER,
    st.floats(allow_nan=False),
    st.lists(TEXT, max_size=5),
    st.lists(st.floats(allow_nan=False), max_size=20),
)


class Recorded:
    """A tracer that records everything, and the spans that ended, each with its time."""

    def __init__(self) -> None:
        self.ended: list[tuple[RecordedSpan, int]] = []
        recorder = Recorder(lambda span, at: self.ended.append((span, at)), random.Random(1))
        self.tracer = SpanRecorder(recorder, Sampling(1.0))

    def sent(self) -> ExportTraceServiceRequest:
        messages = [span_message(span, at) for span, at in self.ended]
        return ExportTraceServiceRequest.FromString(ORIGIN.request(messages))


@given(
    carrier=st.sampled_from(
        [{}, {"traceparent": PARENT}, {"traceparent": PARENT, "tracestate": "a=1,b@c=2"}]
    ),
    attributes=st.dictionaries(TEXT, VALUE, max_size=12),
    failure=st.none() | TEXT,
    name=TEXT,
    began_ms=st.none() | st.integers(0, 2**40),
)
def test_a_span_is_encoded_as_by_the_sdk(
    carrier: dict[str, str], attributes: dict[str, Any], failure: str | None, name: str, began_ms: int | None
) -> None:
    recorded = Recorded()
    span = recorded.tracer.begin(name, "server", carrier, began_ms=began_ms).span
    assert span is not None
    for kind in ("internal", "client", "producer", "consumer"):
        child = span.child(name, kind, began_ms=began_ms)
        for key, value in attributes.items():
            child.set(key, value)
        if failure is not None:
            child.fail(failure)
        child.end()
    span.end()
    theirs = encode_spans([readable(one, at, ORIGIN) for one, at in recorded.ended])
    assert recorded.sent() == theirs
    assert len(theirs.resource_spans[0].scope_spans[0].spans) == 5


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_can_be_sent(name: str) -> None:
    text = HOSTILE[name]
    recorded = Recorded()
    for carrier in (
        {},
        {"traceparent": text},
        {"traceparent": PARENT, "tracestate": text},
    ):
        span = recorded.tracer.begin("gateway.request", "server", carrier).span
        assert span is not None
        span.set("gen_ai.request.id", text)
        span.fail(text)
        span.end()
    sent = recorded.sent()
    assert len(sent.SerializeToString()) < 10 * MAX_TEXT * 3
    spans = sent.resource_spans[0].scope_spans[0].spans
    assert [len(span.attributes) for span in spans] == [1, 1, 1]
    assert all(span.status.message and span.attributes[0].value.string_value for span in spans)
