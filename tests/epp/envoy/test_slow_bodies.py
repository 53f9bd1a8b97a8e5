"""Clients that send all of a body but its last bytes, through a real Envoy, must hold nobody else's place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config.settings import TransportKind
from epp.ext_proc.exchange_settings import ExchangeSettings
from epp.request.body import MemoryBudget
from tests.decoded_exchange import DecodedExchange
from tests.epp.envoy.picker_stage import picker_behind_envoy, started_worker
from tests.eventually import eventually

SMALL = {"model": "m", "prompt": "x" * 10_000}
MIB = 1024 * 1024


async def answer(request: web.Request) -> web.Response:
    return web.Response(text=str(len(await request.read())))


class Stalled:
    """A client that sends all of `size` bytes but the last 100."""

    def __init__(self, port: int, size: int) -> None:
        self._port = port
        self._size = size
        self.status: int | None = None

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {self._size}"
        writer.write(head.encode() + b"\r\n\r\n" + bytes(self._size - 100))
        try:
            self.status = int((await reader.readline()).split()[1])
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture(params=list(TransportKind))
async def open_picker(request: pytest.FixtureRequest, running_envoy: Any) -> AsyncIterator[Any]:
    """`await open_picker(max_buffered_bytes=..., ...)`: the Envoy before it."""
    async with AsyncExitStack() as stack:

        async def picker(**changes: Any) -> Any:
            port = await started_worker(stack, "/v1/completions", answer)
            changes["transport"] = request.param
            behind = picker_behind_envoy(running_envoy, [port], "--request-timeout=0s", **changes)
            return (await stack.enter_async_context(behind))[0]

        yield picker


async def ask(client: aiohttp.ClientSession, envoy: Any) -> int:
    async with asyncio.timeout(90), client.post(envoy.url("/v1/completions"), json=SMALL) as answer:
        return answer.status


async def test_stalled_bodies_make_room_for_others(open_picker: Any) -> None:
    """They would fill the budget twice; each one that comes takes the room of the one that is silent for longest."""
    envoy = await open_picker(max_body_bytes=4 * MIB, max_buffered_bytes=8 * MIB)
    stalled = [Stalled(envoy.ports["inference"], 2 * MIB) for _ in range(8)]
    tasks = [asyncio.create_task(one.run()) for one in stalled]
    await eventually(lambda: any(one.status == 503 for one in stalled), within=90)
    async with aiohttp.ClientSession() as client:
        assert [await ask(client, envoy) for _ in range(50)] == [200] * 50
    assert {one.status for one in stalled} <= {None, 503}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_body_that_never_ends_is_refused_in_time(open_picker: Any) -> None:
    envoy = await open_picker(body_timeout=0.5)
    stalled = Stalled(envoy.ports["inference"], 200)
    async with asyncio.timeout(90):
        await stalled.run()
    assert stalled.status == 408


def begun(
    director: Any, messages: Any, budget: MemoryBudget, size: int, now: float
) -> tuple[DecodedExchange, list[Any]]:
    """An exchange that holds so much, and what it answers when nobody asks it."""
    exchange, said = DecodedExchange(director, ExchangeSettings(max_body_bytes=100), budget=budget), []
    exchange.on_answer(said.extend, said.append)
    exchange.ask(messages.headers(), now)
    assert exchange.ask(messages.body(bytes(size), end_of_stream=False), now) == []
    return exchange, said


def test_who_goes_on_sending_is_not_the_one_to_go(director: Any, messages: Any) -> None:
    budget = MemoryBudget(250)
    first, first_said = begun(director, messages, budget, 60, 0)
    _, second_said = begun(director, messages, budget, 100, 1)
    assert first.ask(messages.body(bytes(10), end_of_stream=False), 2) == []
    _, third_said = begun(director, messages, budget, 100, 3)
    assert (len(first_said), len(second_said), len(third_said)) == (0, 1, 0)
    assert budget.held == 170
    answers = first.ask(messages.body(b"", end_of_stream=True), 4)
    assert answers[0].HasField("request_headers"), "it was picked for"


def test_a_whole_body_that_waits_to_be_sent_is_never_taken_back(director: Any, messages: Any) -> None:
    budget = MemoryBudget(150)
    first, said = begun(director, messages, budget, 100, 0)
    first.ask(messages.body(b"", end_of_stream=True), 0)
    budget.expire(1000.0, 60.0)
    late = DecodedExchange(director, ExchangeSettings(max_body_bytes=100), budget=budget)
    late.ask(messages.headers(), 1)
    (answer,) = late.ask(messages.body(bytes(100), end_of_stream=False), 1)
    assert answer.immediate_response.status.code == 503
    assert said == []


def test_only_bodies_whose_time_is_over_are_refused(director: Any, messages: Any) -> None:
    budget = MemoryBudget(1000)
    _, old = begun(director, messages, budget, 10, 0)
    _, new = begun(director, messages, budget, 10, 5)
    budget.expire(3.0, 60.0)
    assert (len(old), len(new), budget.held) == (1, 0, 10)
