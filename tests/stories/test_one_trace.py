"""One trace from the submission of a queued request to its answer: dispatcher, a real Envoy, picker, worker."""

from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from adsum.tracing.opening import Tracing
from dispatcher.config.config_file import read_config
from dispatcher.server import DispatcherServer
from tests.dispatcher.dispatching import document
from tests.epp.conftest import envoy_running
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.otlp_collector import ReceivedSpan, http_collector

PATH = "/v1/completions"
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_one_trace_shows_queue_pick_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(request.headers["traceparent"])
        return web.json_response({"choices": []})

    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(http_collector())
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        port = await started_worker(stack, PATH, answer)
        async with picker_behind_envoy(envoy_running, [port], tracing=True) as (envoy, _):
            await _submit(envoy.url(""))
        names = _chain(collector.spans, got[0])
    assert names == ["gateway.request", "http-request", "process-request", "enqueue-request"]
    assert {span.trace for span in collector.spans} == {CLIENT[3:35]}
    assert {"wait-in-queue", "pick_endpoints"} <= set(collector.names())


async def _submit(gateway: str) -> None:
    """Through the front door of a dispatcher, which has ended when this returns."""
    config = read_config(document(gateway) + "front_door: {queue: batch}\n", {})
    async with (
        Tracing("llm-d-async", "tests") as tracing,
        DispatcherServer(config, tracer=tracing.tracer) as server,
        aiohttp.ClientSession() as session,
    ):
        url = server.ready_line.split()[1].removeprefix("http=")
        headers = {"X-Dispatch": "wait", "traceparent": CLIENT}
        body = {"model": "m", "prompt": "hello"}
        async with session.post(f"http://{url}{PATH}", json=body, headers=headers) as said:
            assert said.status == 200, await said.text()


def _chain(spans: list[ReceivedSpan], traceparent: str) -> list[str]:
    """The names from the span that the worker was told up to the one that the client's is the parent of."""
    by_id = {span.id: span for span in spans}
    names, id = [], traceparent[36:52]
    while id in by_id:
        names.append(by_id[id].name)
        id = by_id[id].parent
    assert id == CLIENT[36:52]
    return names
