"""The spans of a dispatcher as a collector gets them, and the trace context that its target gets."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from adsum.tracing.opening import Tracing
from adsum.tracing.span import Sampling, Tracer
from dispatcher.broker.contract.message import Claim, Request
from dispatcher.broker.memory.broker import MemoryBroker
from dispatcher.config.config_file import FrontDoorConfig
from dispatcher.delivery.delivery_spans import DeliverySpans
from dispatcher.server import DispatcherServer
from tests.dispatcher.dispatching import configured, dispatching, producer
from tests.dispatcher.target import Asked, Target
from tests.eventually import eventually
from tests.otlp_collector import Received, http_collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = PARENT[3:35]
TOKEN = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Received]:
    async with http_collector() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
        yield received


class Stage:
    """A queue in memory, a dispatcher of it that records traces, and a target."""

    def __init__(self, stack: AsyncExitStack, target: Target) -> None:
        self._stack = stack
        self.target = target

    async def open(self) -> None:
        config = configured(self.target.url)
        broker = await self._stack.enter_async_context(MemoryBroker())
        tracing = await self._stack.enter_async_context(Tracing("llm-d-async", "tests"))
        await self._stack.enter_async_context(dispatching(broker, config, tracer=tracing.tracer))
        self.producer = await self._stack.enter_async_context(producer(broker, config))

    async def close(self) -> None:
        """The dispatcher is closed, which sends its spans."""
        await self._stack.aclose()


@pytest.fixture
async def stage(collector: Received) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        made = Stage(stack, await stack.enter_async_context(Target()))
        await made.open()
        yield made


async def delivered(stage: Stage, **fields: Any) -> Request:
    """Submitted and answered; then the stage is closed."""
    request = await stage.producer.submit("one", **fields)
    await stage.producer.result(request)
    await stage.close()
    return request


async def test_a_request_goes_on_in_the_trace_of_its_producer(stage: Stage, collector: Received) -> None:
    now = await stage.producer.broker.now_ms()
    context = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "user=7"}
    await delivered(stage, metadata=context, created_ms=now - 1000)
    (processing,) = collector.named("process-request")
    (sending,) = collector.named("http-request")
    (waiting,) = collector.named("wait-in-queue")
    assert {span.trace for span in collector.spans} == {TRACE}
    assert (processing.parent, processing.kind, processing.service) == (
        PARENT[36:52],
        "consumer",
        "llm-d-async",
    )
    assert (waiting.parent, waiting.began) == (PARENT[36:52], (now - 1000) * 1_000_000)
    assert waiting.began < waiting.ended
    assert (sending.parent, sending.kind) == (processing.id, "client")
    assert processing.failure is sending.failure is None
    assert processing.attributes["gen_ai.request.id"] == "one"
    assert processing.attributes["gen_ai.request.model"] == "m"
    assert processing.attributes["llm_d.async.queue.name"] == "batch"
    assert processing.attributes["llm_d.async.retry_count"] == 0
    assert sending.attributes["http.response.status_code"] == 200
    (asked,) = stage.target.asked
    assert asked.headers["traceparent"] == f"00-{TRACE}-{sending.id}-01"
    assert (asked.headers["tracestate"], asked.headers["baggage"]) == ("vendor=1", "user=7")


def test_no_caller_overrides_the_context_that_the_operator_sends() -> None:
    request = Request("one", b"{}", 2**40, metadata={"baggage": "user=7", "tracestate": "vendor=1"})
    tracer = Tracer(lambda span, ended: None, random.Random(1), Sampling(ratio=0.0))
    spans = DeliverySpans(tracer, "batch", Claim(request, "fence", 1, 0, 2**40), 0)
    operators = {"baggage": "operator=1", "tracestate": "operator=1"}
    headers = dict(operators)
    spans.send(headers, operators)
    assert headers | operators == headers
    assert headers["traceparent"].endswith("-00")


async def test_the_attempts_of_a_request_that_brought_no_trace_are_one_trace(
    stage: Stage, collector: Received
) -> None:
    answers = iter([503, 200])

    async def answer(asked: Asked) -> web.StreamResponse:
        return web.json_response({}, status=next(answers), headers={"Retry-After": "0"})

    stage.target.answer = answer
    await delivered(stage, token=TOKEN, seconds=30.0)
    first, second = collector.named("process-request")
    assert first.trace == second.trace == TOKEN
    assert [one.attributes["llm_d.async.retry_count"] for one in (first, second)] == [0, 1]
    assert first.attributes["llm_d.async.error.category"] == "SERVER_ERROR"
    (again,) = collector.named("re-enqueue")
    assert (again.parent, again.kind) == (first.id, "producer")
    assert again.attributes["llm_d.async.retry.delay_ms"] > 0
    assert [one.failure for one in collector.named("http-request")] == ["HTTP 503", None]


async def test_a_result_that_is_an_error_is_a_failure(stage: Stage, collector: Received) -> None:
    async def answer(asked: Asked) -> web.StreamResponse:
        return web.json_response({}, status=400)

    stage.target.answer = answer
    await delivered(stage, token=TOKEN)
    (processing,) = collector.named("process-request")
    assert processing.failure == "inference request failed"
    assert processing.attributes["llm_d.async.error.category"] == "INVALID_REQ"


async def test_metadata_of_a_producer_add_no_header_and_no_wrong_time(
    stage: Stage, collector: Received
) -> None:
    hostile = {
        "traceparent": PARENT + "\r\nx-a: 1",
        "baggage": "a=1\r\nx-evil: 1",
        "tracestate": "b" * 70_000,
    }
    await delivered(stage, metadata=hostile, created_ms=2**50, token=TOKEN)
    (asked,) = stage.target.asked
    assert not {"x-a", "x-evil", "baggage", "tracestate"} & asked.headers.keys()
    (processing,) = collector.named("process-request")
    assert (processing.trace, processing.parent) == (TOKEN, "")
    assert collector.named("wait-in-queue") == []


async def test_a_request_that_is_cut_short_is_queued_again(stage: Stage, collector: Received) -> None:
    hold = asyncio.Event()

    async def answer(asked: Asked) -> web.StreamResponse:
        await hold.wait()
        return web.json_response({})

    stage.target.answer = answer
    await stage.producer.submit("one", token=TOKEN)
    await eventually(lambda: stage.target.asked)
    await stage.close()
    (processing,) = collector.named("process-request")
    assert processing.failure == "aborted while it was sent"
    (again,) = collector.named("re-enqueue")
    assert again.parent == processing.id


async def test_the_front_door_begins_the_trace(collector: Received) -> None:
    body = {"model": "m", "prompt": "nobody may see this in a trace"}
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(Target())
        config = configured(target.url).model_copy(update={"front_door": FrontDoorConfig(queue="batch")})
        tracing = await stack.enter_async_context(Tracing("llm-d-async", "tests"))
        server = DispatcherServer(config, tracer=tracing.tracer)
        await stack.enter_async_context(server)
        http = server.ready_line.split()[1].removeprefix("http=")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for context in ({"traceparent": PARENT}, {"tracestate": "stray=1"}):
            headers = {"X-Dispatch": "wait", **context}
            async with session.post(f"http://{http}/v1/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
    ours = {span.name: span for span in collector.spans if span.trace == TRACE}
    assert ours.keys() == {"enqueue-request", "wait-in-queue", "process-request", "http-request"}
    assert (ours["enqueue-request"].parent, ours["enqueue-request"].kind) == (PARENT[36:52], "producer")
    assert ours["process-request"].parent == ours["wait-in-queue"].parent == ours["enqueue-request"].id
    assert len({span.trace for span in collector.spans}) == 2
    assert "tracestate" not in target.asked[1].headers
    assert not any(b"nobody may see" in sent for sent in collector.requests)
