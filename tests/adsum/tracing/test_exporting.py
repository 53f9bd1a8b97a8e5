"""What is said when spans cannot be sent."""

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from adsum.tracing.exporting import SdkLog, WatchedExporter, _hiding, ended
from adsum.tracing.span import MAX_TEXT, Sampling, Tracer

export = pytest.importorskip("opentelemetry.sdk.trace.export")


class Refusing:
    """An exporter whose collector answers with this text."""

    def __init__(self, sdk: SdkLog, text: str) -> None:
        self._sdk = sdk
        self._text = text

    def export(self, spans: Sequence[object]) -> object:
        self._sdk.said = self._text
        return export.SpanExportResult.FAILURE


def test_a_collector_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    sdk = SdkLog()
    refusing: object = Refusing(sdk, "no\x1b[2J\nWARNING: forged")
    watched = WatchedExporter(refusing, sdk, lambda text: text)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        watched.export([])
    (line,) = caplog.messages
    assert line.isprintable()
    assert watched.problem.isprintable()


def test_an_endpoint_without_a_user_hides_nothing() -> None:
    hide = _hiding({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://@host:4317"})
    assert hide("cannot connect") == "cannot connect"
    hide = _hiding({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:s3cret@host:4317"})
    assert hide("http://me:s3cret@host:4317 refused") == "http://...@host:4317 refused"


PARENT = f"00-{7 << 100:032x}-{1:016x}-01"
HOSTILE = {  # as names: pytest-xdist cannot send a lone surrogate to its workers
    "surrogate": "\udcff",
    "surrogate in a text": "\ud800x",
    "control characters": "\x00\x1b[2J",
    "long": "ü" * 100_000,
    "long in ASCII": "a" * 100_000,
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_TEXT)
VALUE = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(TEXT, max_size=5),
    st.lists(st.floats(allow_nan=False), max_size=20),
)


class Recorded(SpanProcessor):
    """A tracer that records everything, and the spans that ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        sink = ended(self, Resource({"service.name": "test"}), "adsum.test")
        self.tracer = Tracer(sink, random.Random(1), Sampling(1.0))

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def sent(self) -> list[Span]:
        (resource,) = encode_spans(self.spans).resource_spans
        (scope,) = resource.scope_spans
        assert scope.scope.name == "adsum.test"
        return list(scope.spans)


def value_of(sent: Any) -> Any:
    kind = sent.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in sent.array_value.values]
    return getattr(sent, kind)


@given(
    attributes=st.dictionaries(TEXT, VALUE, max_size=12),
    failure=st.none() | TEXT,
    name=TEXT,
    began_ms=st.none() | st.integers(0, 2**40),
)
def test_a_span_is_sent_as_it_was_recorded(
    attributes: dict[str, Any], failure: str | None, name: str, began_ms: int | None
) -> None:
    recorded = Recorded()
    carrier = {"traceparent": PARENT, "tracestate": "a=1,b@c=2"}
    root = recorded.tracer.begin(name, "server", carrier, began_ms=began_ms).span
    assert root is not None
    child = root.child(name, "client", began_ns=None if began_ms is None else began_ms * 1_000_000)
    for key, value in attributes.items():
        child.set(key, value)
    if failure is not None:
        child.fail(failure)
    child.end()
    root.end()
    inner, outer = recorded.sent()
    assert (inner.name, inner.kind, outer.kind) == (name, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER)
    assert {one.key: value_of(one.value) for one in inner.attributes} == attributes
    assert (inner.status.code == Status.STATUS_CODE_ERROR) == (failure is not None)
    assert inner.status.message == (failure or "")
    assert (inner.trace_id, inner.parent_span_id) == (outer.trace_id, outer.span_id)
    assert (outer.trace_id, outer.parent_span_id) == ((7 << 100).to_bytes(16, "big"), (1).to_bytes(8, "big"))
    assert inner.trace_state == outer.trace_state == "a=1,b@c=2"
    assert began_ms is None or inner.start_time_unix_nano == began_ms * 1_000_000
    assert inner.end_time_unix_nano >= (0 if began_ms is None else inner.start_time_unix_nano)


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_can_be_sent(name: str) -> None:
    text = HOSTILE[name]
    recorded = Recorded()
    for carrier in ({}, {"traceparent": text}, {"traceparent": PARENT, "tracestate": text}):
        span = recorded.tracer.begin("gateway.request", "server", carrier).span
        assert span is not None
        span.set("gen_ai.request.id", text)
        span.set("llm_d.epp.picker.top_endpoints", [text[:MAX_TEXT]])
        span.fail(text)
        span.end()
    spans = recorded.sent()
    assert sum(one.ByteSize() for one in spans) < 10 * MAX_TEXT * 4
    assert [len(span.attributes) for span in spans] == [2, 2, 2]
    assert all(span.status.message and span.attributes[0].value.string_value for span in spans)
