"""A stand-in for an OpenTelemetry collector: receives OTLP over HTTP or gRPC and keeps the spans that it decodes."""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

ERROR = trace_pb2.Status.STATUS_CODE_ERROR


@dataclass(frozen=True)
class ReceivedSpan:
    """Ids in hexadecimal; `parent` is empty for the root of a trace. Times in Unix nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    began: int
    ended: int
    attributes: Mapping[str, Any]
    failure: str | None
    service: str
    state: str


@dataclass
class Received:
    """All spans so far, from all programs."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in list(self.spans) if span.name == name]

    def names(self) -> list[str]:
        return [span.name for span in list(self.spans)]

    def take(self, body: bytes) -> None:
        self.requests.append(body)
        for resource in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans += [_received(span, service) for span in scope.spans]


@asynccontextmanager
async def http_collector() -> AsyncIterator[Received]:
    """At `url` + /v1/traces."""
    received = Received()

    async def export(request: web.Request) -> web.Response:
        received.take(await request.read())
        return web.Response(
            body=trace_service.ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/traces", export)
    async with TestServer(app) as server:
        received.url = f"http://127.0.0.1:{server.port}"
        yield received


@contextmanager
def grpc_collector() -> Iterator[Received]:
    received, lock = Received(), threading.Lock()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
            with lock:
                received.take(request.SerializeToString())
            return trace_service.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    received.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(None).wait()


def _received(span: Any, service: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        failure=span.status.message if span.status.code == ERROR else None,
        service=service,
        state=span.trace_state,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
