"""Through a real Envoy: the spans that a collector gets, and the trace context that a worker gets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.epp.envoy.picker_stage import picker_behind_envoy
from tests.eventually import eventually
from tests.free_port import free_port
from tests.http_server import http_server
from tests.otlp_collector import Received, ReceivedSpan, grpc_collector, http_collector

PATH = "/v1/completions"
SECRET = "a prompt that nobody may see in a trace"
PROMPT = {"model": "m", "prompt": SECRET}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
TRACE = PARENT[3:35]
CONFIG = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer}, {type: prefix-cache-scorer}, {type: max-score-picker}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""


class Stage:
    """Workers that write down what headers they got, a picker that records traces, and an Envoy."""

    def __init__(self, stack: AsyncExitStack, running_envoy: Any, collector: Received) -> None:
        self.stack = stack
        self.running_envoy = running_envoy
        self.collector = collector
        self.got: list[Mapping[str, str]] = []
        self.status = 200
        self.session = aiohttp.ClientSession()

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({}, status=self.status)

    async def open(self, workers: int = 2, **settings: Any) -> None:
        await self.stack.enter_async_context(self.session)
        ports = [await self._worker(waiting=number) for number in range(workers)]
        picker = picker_behind_envoy(
            self.running_envoy, ports, **{"tracing": True, "config_text": CONFIG} | settings
        )
        self.envoy, self.addresses = await self.stack.enter_async_context(picker)
        self.page = f"http://{self.addresses['metrics']}"
        await eventually(self._fresh)

    async def _worker(self, waiting: int) -> int:
        async def page(_: web.Request) -> web.Response:
            return web.Response(
                text=f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
            )

        return await self.stack.enter_async_context(http_server({PATH: self.answer, "/metrics": page}))

    async def _fresh(self) -> bool:
        """Whether the picker has the numbers of all workers: without them none is scored."""
        async with self.session.get(f"{self.page}/debug/endpoints") as answer:
            known = await answer.json()
        return all(endpoint["age"] is not None for endpoint in known["endpoints"])

    async def post(self, body: Mapping[str, Any] = PROMPT, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.envoy.url(PATH), json=body, headers=named) as answer:
            await answer.read()
            return answer.status

    async def span(self, name: str) -> ReceivedSpan:
        await eventually(lambda: bool(self.collector.named(name)))
        return self.collector.named(name)[0]


@pytest.fixture
async def stage(running_envoy: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(http_collector())
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }.items():
            monkeypatch.setenv(name, value)
        yield Stage(stack, running_envoy, collector)


async def test_a_trace_goes_from_its_client_through_the_picker_to_its_worker(stage: Stage) -> None:
    await stage.open()
    sent = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "user=7", "x_request_id": "one"}
    assert await stage.post(**sent) == 200
    request = await stage.span("gateway.request")
    assert (request.trace, request.parent, request.kind) == (TRACE, PARENT[36:52], "server")
    assert (request.service, request.state, request.failure) == ("llm-d-epp", "vendor=1", None)
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["gen_ai.request.id"] == "one"
    assert request.attributes["gen_ai.request.model"] == "m"
    assert request.attributes["llm_d.epp.endpoint"].startswith("127.0.0.1:")
    (got,) = stage.got
    assert got["traceparent"] == f"00-{TRACE}-{request.id}-01"
    assert (got["tracestate"], got["baggage"]) == ("vendor=1", "user=7")
    assert all(span.trace == TRACE for span in stage.collector.spans)


async def test_the_steps_of_a_pick_are_the_go_pickers_spans_and_tell_no_secret(stage: Stage) -> None:
    await stage.open()
    assert await stage.post(traceparent=PARENT, authorization="Bearer hush-hush") == 200
    request = await stage.span("gateway.request")
    parents = {span.id: span.name for span in stage.collector.spans}
    tree = {span.name: parents.get(span.parent) for span in stage.collector.spans}
    assert tree == {
        "gateway.request": None,
        "gateway.request_orchestration": "gateway.request",
        "run_scheduler_profile": "gateway.request_orchestration",
        "filter_endpoints": "run_scheduler_profile",
        "llm_d.epp.scoring": "run_scheduler_profile",
        "llm_d.epp.scorer.queue-scorer": "llm_d.epp.scoring",
        "llm_d.epp.scorer.kv-cache-utilization-scorer": "llm_d.epp.scoring",
        "llm_d.epp.scorer.prefix-cache-scorer": "llm_d.epp.scoring",
        "pick_endpoints": "run_scheduler_profile",
    }
    of = {span.name: span.attributes for span in stage.collector.spans}
    assert of["gateway.request_orchestration"]["target_model"] == "m"
    assert of["gateway.request_orchestration"]["request_prio"] == 0
    assert of["run_scheduler_profile"]["llm_d.epp.scheduling.profile.name"] == "default"
    assert of["filter_endpoints"]["llm_d.epp.filter.candidate_endpoints"] == 2
    assert of["filter_endpoints"]["llm_d.epp.filter.filtered_endpoints"] == 2
    assert of["llm_d.epp.scoring"]["llm_d.epp.scorer.count"] == 3
    assert of["llm_d.epp.scorer.queue-scorer"]["llm_d.epp.scorer.weight"] == 2
    assert of["llm_d.epp.scorer.queue-scorer"]["llm_d.epp.scorer.type"] == "queue-scorer"
    best = of["pick_endpoints"]["llm_d.epp.picker.top_endpoints"]
    assert request.attributes["llm_d.epp.endpoint"] == best[0]
    assert len(best) == 2
    sent = b"".join(stage.collector.requests)
    assert SECRET.encode() not in sent
    assert b"hush-hush" not in sent


async def test_a_request_that_is_not_sampled_is_recorded_nowhere_and_keeps_its_context(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    await stage.open()
    assert await stage.post(traceparent=UNSAMPLED, tracestate="vendor=1") == 200
    assert (stage.got[0]["traceparent"], stage.got[0]["tracestate"]) == (UNSAMPLED, "vendor=1")
    assert await stage.post(tracestate="vendor=1") == 200
    began = stage.got[1]["traceparent"]  # so that no worker begins a trace of its own
    assert len(began) == 55
    assert began.endswith("-00")
    assert TRACE not in began
    assert "tracestate" not in stage.got[1]  # it belonged to no trace
    assert await stage.post(traceparent=PARENT) == 200
    await stage.span("gateway.request")
    assert {span.trace for span in stage.collector.spans} == {TRACE}


MALFORMED = [  # Envoy itself takes no more than 60 KiB of headers
    "x" * 30_000, "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + PARENT[2:], PARENT.upper(), PARENT + "-", "\xff" * 55
]  # fmt: skip


async def test_a_malformed_context_begins_a_new_trace(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    await stage.open()
    for hostile in MALFORMED:
        stage.collector.spans.clear()
        assert await stage.post(traceparent=hostile, baggage="b" * 8000) == 200
        request = await stage.span("gateway.request")
        assert request.parent == ""
        assert request.trace != TRACE
        assert stage.got[-1]["traceparent"] == f"00-{request.trace}-{request.id}-01"


async def test_refusals_and_errors_of_workers_are_failures(stage: Stage) -> None:
    await stage.open(workers=1)
    assert await stage.post({"prompt": "no model"}, traceparent=PARENT) == 400
    refused = await stage.span("gateway.request")
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.attributes["error.type"] == "invalid_request_error"
    assert refused.failure == "invalid_request_error"
    stage.status = 500
    assert await stage.post(traceparent=PARENT) == 500
    await eventually(lambda: len(stage.collector.named("gateway.request")) == 2)
    failed = stage.collector.named("gateway.request")[1]
    assert (failed.attributes["http.response.status_code"], failed.failure) == (500, "HTTP 500")


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_collector_that_is_away_costs_no_request(
    protocol: str, stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"http://me:hush-hush@127.0.0.1:{free_port()}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    await stage.open()
    for _ in range(5):
        assert await stage.post(traceparent=PARENT) == 200

    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "tracing"]

    await eventually(lambda: bool(logged()))
    assert await stage.post(traceparent=PARENT) == 200
    assert len(logged()) == 1
    assert "cannot be sent" in logged()[0]
    assert "hush-hush" not in caplog.text
    async with stage.session.get(f"http://{stage.addresses['metrics']}/status") as page:
        tracing = (await page.json())["tracing"]
    assert tracing["lost"] > 0
    assert tracing["sent"] == 0
    assert "hush-hush" not in str(tracing)


async def test_the_default_protocol_is_grpc(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my-picker")
        stage.collector = collector
        await stage.open(workers=1)
        assert await stage.post(traceparent=PARENT) == 200
        assert (await stage.span("gateway.request")).service == "my-picker"
