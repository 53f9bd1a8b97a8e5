"""One simulated worker over real sockets, many times faster than real time."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from discovery.instance import InstanceStatus
from examples.simulator.app import ModelServer
from examples.simulator.faults import Faults
from examples.simulator.metrics_page import MetricsPage
from examples.simulator.openai_api import Profile
from examples.simulator.pacing import Pacer
from examples.simulator.scheduler_model import Limits, SchedulerModel
from examples.simulator.state import WorkerState
from tests.eventually import eventually

LIMITS = Limits(max_num_seqs=2, num_blocks=200)
PROFILE = Profile(instance_id="decode-7", model="tiny", adapters=("poet",), max_model_len=LIMITS.kv_tokens)
SLOW = {"model": "tiny", "prompt": "again and again", "max_tokens": 3000}  # minutes, when nobody goes away


class Worker:
    def __init__(self, http: aiohttp.ClientSession, pacer: Pacer, state: WorkerState) -> None:
        self.http = http
        self.pacer = pacer
        self.state = state

    async def post(self, path: str, body: Any, **headers: str) -> tuple[aiohttp.ClientResponse, Any]:
        async with self.http.post(path, json=body, headers=headers) as response:
            return response, await response.json()


async def run_worker(limits: Limits, speed: float, faults: Faults | None = None) -> AsyncIterator[Worker]:
    pacer, state = Pacer(SchedulerModel(limits), speed=speed), WorkerState()
    state.status = InstanceStatus.READY
    server = ModelServer(PROFILE, pacer, MetricsPage("tiny", limits), state, limits.block_size, faults)
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(url) as http, anyio.create_task_group() as tasks:
        tasks.start_soon(pacer.run)
        yield Worker(http, pacer, state)
        tasks.cancel_scope.cancel()
    await runner.cleanup()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async for fast in run_worker(LIMITS, speed=50):
        yield fast


@pytest.fixture
async def slow_worker() -> AsyncIterator[Worker]:
    async for slow in run_worker(LIMITS, speed=1):
        yield slow


async def test_a_plain_answer_says_who_served_it(worker: Worker) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "good morning"}]}
    response, body = await worker.post("/v1/chat/completions", chat, **{"x-request-id": "r-1"})
    assert response.status == 200
    assert (response.headers["x-served-by"], response.headers["x-request-id"]) == ("decode-7", "r-1")
    assert (body["id"], body["system_fingerprint"]) == ("chatcmpl-r-1", "decode-7")
    assert body["choices"][0]["message"]["content"] == "good morning"


async def test_a_streamed_answer_comes_token_by_token(slow_worker: Worker) -> None:
    for tokens in (60, 600):  # a machine that stands still for a second makes all of 60 at once
        before = slow_worker.pacer.totals.generated
        body = {"model": "tiny", "prompt": "one two", "max_tokens": tokens, "stream": True}
        async with slow_worker.http.post("/v1/completions", json=body) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert response.headers["x-served-by"] == "decode-7"
            first = await response.content.readuntil(b"\n\n")
            came_with_the_first = slow_worker.pacer.totals.generated - before
            rest = await response.read()
        if came_with_the_first < tokens:
            break
    assert came_with_the_first < tokens
    events = (first + rest).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " ".join(["one two"] * (tokens // 2))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_stream_ends_with_usage_when_asked(worker: Worker) -> None:
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with worker.http.post("/v1/chat/completions", json=chat) as response:
        events = (await response.text()).split("\n\n")
    usage = json.loads(events[-3].removeprefix("data: "))
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 1)


async def test_a_shared_prefix_is_cached(worker: Worker) -> None:
    prompt = "the same long beginning of many prompts " * 20
    _, cold = await worker.post("/v1/completions", {"model": "tiny", "prompt": prompt + "x", "max_tokens": 1})
    _, warm = await worker.post("/v1/completions", {"model": "tiny", "prompt": prompt + "y", "max_tokens": 1})
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= warm["usage"]["prompt_tokens"] - 17


async def test_metrics_follow_the_load_and_a_client_that_goes_away_frees_it(slow_worker: Worker) -> None:
    async def hang_up_later(release: anyio.Event, stream: bool) -> None:
        async with slow_worker.http.post("/v1/completions", json=SLOW | {"stream": stream}) as response:
            await release.wait()
            response.close()

    release = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for stream in (True, False, True):
            tasks.start_soon(hang_up_later, release, stream)
        await eventually(lambda: slow_worker.pacer.load().waiting == 1)
        async with slow_worker.http.get("/metrics") as response:
            page = await response.text()
        assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 2.0' in page
        assert 'vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0' in page
        assert slow_worker.pacer.load().kv_usage > 0
        assert slow_worker.state.requests == 3
        release.set()
        tasks.cancel_scope.cancel()  # the plain one has no headers yet: its client just stops waiting
    await eventually(lambda: slow_worker.pacer.load().running == 0)
    load = slow_worker.pacer.load()
    assert (load.waiting, load.kv_usage, slow_worker.state.requests) == (0, 0.0, 0)
    assert slow_worker.pacer.totals.aborted_requests == 3


async def test_many_at_once_are_all_answered(worker: Worker) -> None:
    answers: list[int] = []

    async def ask(number: int) -> None:
        body = {"model": "tiny", "prompt": f"number {number}", "max_tokens": 1 + number % 7}
        _, answer = await worker.post("/v1/completions", body, **{"x-request-id": "always the same"})
        answers.append(answer["usage"]["completion_tokens"])

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(ask, number)
    assert sorted(answers) == sorted(1 + number % 7 for number in range(60))


async def test_adapters_show_in_models_and_metrics(worker: Worker) -> None:
    _, body = await worker.post("/v1/completions", {"model": "poet", "prompt": "hi"})
    assert body["model"] == "poet"
    async with worker.http.get("/v1/models") as response:
        assert [entry["id"] for entry in (await response.json())["data"]] == ["tiny", "poet"]
    async with worker.http.get("/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'running_lora_adapters="poet"' in await response.text()


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/completions", b"{", 400, None),
        ("/v1/chat/completions", b'{"model": "tiny"}', 400, None),
        ("/v1/completions", b'{"model": "huge", "prompt": "a"}', 404, "model_not_found"),
        ("/v1/models", b"", 405, None),
        ("/v2/completions", b"{}", 404, None),
    ],
)
async def test_errors_have_openais_shape(
    worker: Worker, path: str, body: bytes, status: int, code: str | None
) -> None:
    async with worker.http.post(path, data=body) as response:
        error = (await response.json())["error"]
    assert response.status == status
    assert response.headers["x-served-by"] == "decode-7"
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["message"]


async def test_a_body_over_the_limit_is_refused(worker: Worker) -> None:
    async with worker.http.post("/v1/completions", data=BytesIO(bytes(64 * 1024 * 1024 + 1))) as response:
        assert response.status == 413
        assert (await response.json())["error"]["message"]


async def test_health_follows_the_status_and_draining_closes_connections(worker: Worker) -> None:
    for status, expected in ((InstanceStatus.NOT_READY, 503), (InstanceStatus.READY, 200)):
        worker.state.status = status
        async with worker.http.get("/health") as response:
            assert (response.status, await response.json()) == (expected, {"status": status.value})
    worker.state.status = InstanceStatus.DRAINING
    response, _ = await worker.post("/v1/completions", {"model": "tiny", "prompt": "hi"})
    assert response.status == 200
    assert response.headers["Connection"] == "close"


async def test_quiet_means_that_nothing_came_for_a_while() -> None:
    state = WorkerState()
    with anyio.fail_after(90):
        await state.wait_idle(0.01)
    with state.request(), anyio.move_on_after(0.05) as scope:
        await state.wait_idle(0.01)
    assert scope.cancelled_caught
    with anyio.fail_after(90):
        await state.wait_idle(0.01)


def test_time_must_pass() -> None:
    with pytest.raises(ValueError, match="speed"):
        Pacer(SchedulerModel(replace(LIMITS, max_num_seqs=1)), speed=0)


async def test_faults_on_request() -> None:
    async for it in run_worker(LIMITS, speed=50, faults=Faults()):
        prompt = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
        for fault, status in (("error", 500), ("none", 200)):
            async with it.http.post("/fault", data=fault) as answer:
                assert answer.status == 200
            async with it.http.post("/v1/completions", json=prompt) as answer:
                assert answer.status == status
            async with it.http.get("/metrics") as answer:
                assert answer.status == 200
        async with it.http.post("/fault", data="fire") as answer:
            assert (answer.status, "expected none, error, stall, flap" in await answer.text()) == (400, True)
        await it.http.post("/fault", data="stall")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await it.http.post("/v1/completions", json=prompt)
        asked = asyncio.create_task(it.post("/v1/completions", prompt))
        await it.http.post("/fault", data="none")
        response, _ = await asked
        assert response.status == 200


async def test_without_the_flag_there_are_no_faults(worker: Worker) -> None:
    async with worker.http.post("/fault", data="error") as answer:
        assert answer.status == 404
