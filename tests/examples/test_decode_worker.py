"""A decode worker finds prefill workers by discovery alone (seed 002)."""

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp
import pytest

import discovery
import registry
from examples.decode_worker import NAMESPACE, PrefillWorkers, run_prefill

pytestmark = pytest.mark.anyio
REQUEST = {"prompt": "Tell me about the sea."}


async def start(stack: AsyncExitStack, url: str, name: str) -> asyncio.Task[None]:
    task = asyncio.create_task(run_prefill(registry.open(url, instance_id=name)))

    async def stop() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    stack.push_async_callback(stop)
    return task


async def asked(workers: PrefillWorkers, times: int = 4) -> set[Any]:
    found = [await workers.prefill(REQUEST) for _ in range(times)]
    return {None if one is None else one["remote_engine_id"] for one in found}


async def until(workers: PrefillWorkers, expected: set[Any]) -> None:
    async with asyncio.timeout(20):
        while await asked(workers) != expected:
            await asyncio.sleep(0.01)


async def test_it_asks_who_is_there_and_nobody_else() -> None:
    url = "memory://decode-worker"
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(discovery.open(url))
        stream = await stack.enter_async_context(service.watch(NAMESPACE, "prefill", metadata=True))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        workers = PrefillWorkers(stream, session)
        assert await asked(workers) == {None}, "nobody is there, so it computes prompts itself"
        first = await start(stack, url, "p-0")
        await start(stack, url, "p-1")
        await until(workers, {"p-0", "p-1"})
        found = await workers.prefill(REQUEST)
        assert found is not None
        assert (found["remote_host"], found["remote_port"]) == ("127.0.0.1", 5600)
        assert await asked(PrefillWorkers(stream, session, revision="2")) == {None}, "another KV cache"
        first.cancel()
        await until(workers, {"p-1"})
        await start(stack, url, "p-2")
        await until(workers, {"p-1", "p-2"})


async def test_a_worker_that_does_not_answer_is_passed_over() -> None:
    url = "memory://decode-worker-refused"
    async with AsyncExitStack() as stack:
        handle = await stack.enter_async_context(
            registry.open(url, instance_id="p-0").register_instance(NAMESPACE, "prefill")
        )
        # its own port serves the wire contract only: POST /prefill is 404 there
        handle.set_metadata({"transport": {"nixl": {"port": 1}}, "labels": {"revision": "1"}})
        handle.set_ready("ready")
        service = await stack.enter_async_context(discovery.open(url))
        stream = await stack.enter_async_context(service.watch(NAMESPACE, "prefill", metadata=True))
        workers = PrefillWorkers(stream, await stack.enter_async_context(aiohttp.ClientSession()))
        assert await asked(workers) == {None}
        await start(stack, url, "p-1")
        await until(workers, {"p-1"})
