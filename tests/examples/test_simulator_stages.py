"""Simulated workers that hand KV caches over: the forms of vLLM, SGLang and TensorRT-LLM, deaths between the legs, and leases."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from discovery.instance import InstanceStatus
from examples.simulator.app import ModelServer
from examples.simulator.encoding import Encoder
from examples.simulator.handover import KvHandovers, TransferTimes
from examples.simulator.metrics_page import MetricsPage
from examples.simulator.openai_api import Profile
from examples.simulator.pacing import Pacer
from examples.simulator.scheduler_model import Limits, SchedulerModel
from examples.simulator.state import WorkerState
from tests.eventually import eventually

LIMITS = Limits(num_blocks=400)
PROMPT = "a long prompt of many tokens " * 40
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}


class Worker:
    def __init__(
        self, http: aiohttp.ClientSession, pacer: Pacer, encoder: Encoder, stop: Callable[[], Awaitable[None]]
    ) -> None:
        self.http = http
        self.pacer = pacer
        self.encoder = encoder
        self.stop = stop

    async def ask(self, status: int = 200, path: str = "/v1/completions", **given: Any) -> Any:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1} | given
        async with self.http.post(path, json=body) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def prefill(self, **given: Any) -> Any:
        """What the first leg's answer tells the second."""
        return (await self.ask(kv_transfer_params=REMOTE_DECODE, **given))["kv_transfer_params"]


@asynccontextmanager
async def worker(role: str, times: TransferTimes | None = None) -> AsyncIterator[Worker]:
    pacer, state = Pacer(SchedulerModel(LIMITS), speed=50), WorkerState()
    state.status = InstanceStatus.READY
    handovers, encoder = KvHandovers(pacer, times or TransferTimes(), 16, role), Encoder(pacer, 0.5)
    server = ModelServer(
        Profile(role, "tiny", (), LIMITS.kv_tokens), pacer, MetricsPage("tiny", LIMITS), state, 16,
        handovers=handovers, encoder=encoder,
    )  # fmt: skip
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    handovers.address = encoder.address = runner.addresses[0]
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(url) as http, anyio.create_task_group() as tasks:
        tasks.start_soon(pacer.run)
        yield Worker(http, pacer, encoder, runner.cleanup)
        tasks.cancel_scope.cancel()
    await runner.cleanup()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Worker, Worker]]:
    async with worker("prefill") as prefill, worker("decode") as decode:
        yield prefill, decode


async def test_vllm_decode_goes_on_with_what_prefill_computed(pair: tuple[Worker, Worker]) -> None:
    prefill, decode = pair
    told = await prefill.prefill()
    assert (told["do_remote_prefill"], told["do_remote_decode"]) == (True, False)
    held = prefill.pacer.load().held_blocks
    assert held == len(told["remote_block_ids"][0])
    answer = await decode.ask(kv_transfer_params=told, max_tokens=30)
    assert answer["usage"]["completion_tokens"] == 30
    tokens = answer["usage"]["prompt_tokens"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == tokens - 1  # the last one is computed
    assert prefill.pacer.load().held_blocks == 0
    assert decode.pacer.totals.prefix_hits == 0
    again = await decode.ask(kv_transfer_params=told, max_tokens=30, status=500)
    assert "cannot be fetched" in again["error"]["message"]


async def test_an_answer_that_is_complete_leaves_nothing_to_hand_over(pair: tuple[Worker, Worker]) -> None:
    body = await pair[0].ask(
        path="/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=None,
        kv_transfer_params=REMOTE_DECODE,
    )
    assert "kv_transfer_params" not in body
    assert pair[0].pacer.load().held_blocks == 0


async def test_parameters_that_lack_something_are_ignored_as_in_vllm(pair: tuple[Worker, Worker]) -> None:
    answer = await pair[1].ask(kv_transfer_params={"do_remote_prefill": True, "remote_host": "127.0.0.1"})
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_decode_fails_once_its_prefill_worker_died(pair: tuple[Worker, Worker]) -> None:
    prefill, decode = pair
    told = await prefill.prefill()
    await prefill.stop()
    await decode.ask(kv_transfer_params=told, status=500)
    async with decode.http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": PROMPT, "stream": True, "kv_transfer_params": told},
    ) as response:
        assert response.status == 200  # its headers go out at once
        events = (await response.text()).split("\n\n")
    assert "cannot be fetched" in json.loads(events[0].removeprefix("data: "))["error"]["message"]
    assert events[-2:] == ["data: [DONE]", ""]
    assert decode.pacer.totals.failed_transfers == 2


async def test_or_computes_the_prompt_if_it_shall() -> None:
    async with worker("prefill") as prefill, worker("decode", TransferTimes(recompute=True)) as decode:
        told = await prefill.prefill()
        await prefill.stop()
        answer = await decode.ask(kv_transfer_params=told)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_prefill_worker_that_started_again_is_another(pair: tuple[Worker, Worker]) -> None:
    told = await pair[0].prefill()
    await pair[1].ask(kv_transfer_params=told | {"remote_engine_id": "the former"}, status=500)
    assert pair[0].pacer.load().held_blocks


async def test_blocks_that_nobody_fetches_are_free_after_their_lease() -> None:
    async with worker("prefill", TransferTimes(lease=5.0)) as prefill:
        await prefill.prefill()
        assert prefill.pacer.load().held_blocks
        assert prefill.pacer.load().kv_usage > 0.0
        await eventually(lambda: prefill.pacer.totals.expired_requests == 1)
        assert prefill.pacer.load().kv_usage == 0.0
        text = await (await prefill.http.get("/metrics")).text()
    assert 'simulator:held_kv_blocks{engine="0",model_name="tiny"} 0.0' in text
    assert 'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="tiny"} 1.0' in text


async def test_sglang_runs_both_legs_at_once(pair: tuple[Worker, Worker]) -> None:
    prefill, decode = pair
    told = {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": prefill.http._base_url.port,
        "bootstrap_room": 2**62 + 7,
    }
    async with asyncio.TaskGroup() as tasks:
        second = tasks.create_task(decode.ask(**told, max_tokens=20))
        first = tasks.create_task(prefill.ask(**told))
    assert second.result()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert "kv_transfer_params" not in first.result()
    assert prefill.pacer.load().held_blocks == 0


async def test_sglang_needs_a_role() -> None:
    async with worker("both") as both:
        answer = await both.ask(bootstrap_room=1, status=400)
    assert "--role prefill" in answer["error"]["message"]


async def test_tensorrt_llm_goes_on_with_the_tokens_of_the_context_leg(pair: tuple[Worker, Worker]) -> None:
    prefill, decode = pair
    first = await prefill.ask(
        disaggregated_params={"request_type": "context_only", "disagg_request_id": 2**42 + 5}
    )
    told = first["choices"][0]["disaggregated_params"] | {"request_type": "generation_only"}
    assert told["ctx_request_id"] == 2**42 + 5
    assert len(told["first_gen_tokens"]) == 1
    answer = await decode.ask(prompt=first["prompt_token_ids"], disaggregated_params=told, max_tokens=4)
    assert answer["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    refused = await decode.ask(disaggregated_params={"request_type": "generation_only"}, status=400)
    assert "ctx_info_endpoint" in refused["error"]["message"]


async def test_an_image_is_encoded_elsewhere_or_here() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [image, {"type": "text", "text": "what is it?"}, image]
    chat = {"path": "/v1/chat/completions", "messages": [{"role": "user", "content": content}]}
    async with worker("encode") as encode, worker("decode") as decode:
        told = (await encode.ask(**chat))["ec_transfer_params"]
        assert len(told) == 1  # equal items once
        await decode.ask(**chat, ec_transfer_params=told)
        await encode.stop()
        await decode.ask(**chat, ec_transfer_params=told)  # it has it by now
        assert (encode.encoder.encoded_here, decode.encoder.encoded_here) == (1, 0)
        image["image_url"] = {"url": "data:image/png;base64,BBBB"}
        await decode.ask(**chat, ec_transfer_params={"0" * 32: next(iter(told.values()))})
        assert decode.encoder.encoded_here == 1
