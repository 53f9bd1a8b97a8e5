"""A picker of two processes behind an Envoy of one worker thread: both pick, and one that is killed fails no request."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from tests.epp.envoy.picker_stage import started_worker
from tests.epp.test_processes import group, of_peers, processes
from tests.eventually import eventually


@pytest.mark.parametrize("outcomes", ["access-log", "ext-proc"])
async def test_both_pick_and_one_that_is_killed_between_requests_fails_none(
    running_envoy: Any, outcomes: str
) -> None:
    held = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if "hold" in request.query:
            await held.wait()
        return web.json_response({})

    async with AsyncExitStack() as stack:
        ports = [await started_worker(stack, "/v1/completions", answer) for _ in range(2)]
        picker = await stack.enter_async_context(group(2, ports))
        flags = ["--listen-port=0", "--admin-port=0", "--secure=false", f"--epp={picker.address}"]
        config = render(envoy_flags.parse([*flags, f"--outcomes={outcomes}"]))
        envoy = await stack.enter_async_context(running_envoy(config))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )

        async def ask(path: str = "/v1/completions") -> int:
            body = {"model": "m", "prompt": "hello " * 200}
            async with client.post(envoy.url(path), json=body) as answered:
                await answered.read()
                return answered.status

        await eventually(lambda: _is_ok(ask))
        under_way = [asyncio.create_task(ask("/v1/completions?hold")) for _ in range(60)]

        async def shared() -> bool:
            """All are in flight, at both processes."""
            there = await of_peers(picker)
            return len(there) == 1 and 0 < there[0] < 60 and await picker.in_flight() == 60

        if outcomes == "ext-proc":  # streams that last: 16 on one connection
            await eventually(shared)
        held.set()
        assert await asyncio.gather(*under_way) == [200] * 60

        before = processes(picker)
        os.kill(before[1], signal.SIGKILL)
        assert await asyncio.gather(*[ask() for _ in range(40)]) == [200] * 40
        await eventually(lambda: processes(picker).get(1, before[1]) != before[1])
        assert await asyncio.gather(*[ask() for _ in range(40)]) == [200] * 40
        await eventually(lambda: _is_zero(picker.in_flight))


async def _is_ok(ask: Any) -> bool:
    return bool(await ask() == 200)


async def _is_zero(count: Any) -> bool:
    return bool(await count() == 0)
