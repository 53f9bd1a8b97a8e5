"""Two pickers behind one Envoy, and behind three: one dies, stops, leaves or restarts, and no request that was picked fails."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from epp.envoy import flags as envoy_flags
from epp.envoy.config import render
from tests.epp.conftest import RunningEnvoy, envoy_running
from tests.epp.envoy.picker_stage import started_worker
from tests.epp.picker_programs import PickerProgram, picker_programs
from tests.eventually import asked_until, eventually

TURNS = 3
"""benchmarks/picking/README.md has the figures of ten."""
REQUESTS = 200
LONGEST = 10.0
"""Seconds; ten times what a new request may take longer."""
WORKERS = 3
END = b"data: [DONE]\n\n"


class Worker:
    """`asked`: how many requests reached it."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Takes as long as it is asked to, in ten pieces if it is streamed."""
        self.asked += 1
        asked = await request.json()
        if not asked["stream"]:
            await asyncio.sleep(asked["seconds"])
            return web.json_response({})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(10):
            await asyncio.sleep(asked["seconds"] / 10)
            await response.write(b"data: {}\n\n")
        await response.write(END)
        return response


@asynccontextmanager
async def stage(
    envoys: int, worker: Worker, count: int = 2
) -> AsyncIterator[tuple[list[PickerProgram], list[RunningEnvoy]]]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        workers = [await started_worker(stack, "/v1/completions", worker.answer) for _ in range(WORKERS)]
        pickers = await enter(picker_programs(count, workers))
        flags = ["--listen-port=0", "--admin-port=0", "--secure=false", "--outcomes=access-log"]
        flags += ["--access-log=", *[f"--epp={one.address}" for one in pickers]]
        config = render(envoy_flags.parse(flags))
        yield pickers, [await enter(envoy_running(config, waits=False)) for _ in range(envoys)]


async def ask(client: aiohttp.ClientSession, envoy: RunningEnvoy, seconds: float, *, stream: bool) -> str:
    """What became of it; "" is a whole answer."""
    body = {"model": "m", "prompt": "x", "stream": stream, "seconds": seconds}
    try:
        async with client.post(envoy.url("/v1/completions"), json=body) as response:
            text = await response.read()
            if response.status == 200 and (text.endswith(END) or not stream):
                return ""
            return f"{response.status} {text[-200:]!r}"
    except aiohttp.ClientError as error:
        return repr(error)


async def newcomers(client: aiohttp.ClientSession, fronts: Sequence[RunningEnvoy]) -> list[tuple[str, float]]:
    """What became of requests that come for some seconds, as `ask`, and after how many seconds."""

    async def timed(at: int) -> tuple[str, float]:
        began = time.monotonic()
        return await ask(client, fronts[at % len(fronts)], 0.0, stream=at % 2 == 0), time.monotonic() - began

    asking = []
    for at in range(60):
        asking.append(asyncio.create_task(timed(at)))
        await asyncio.sleep(0.05)
    return await asyncio.gather(*asking)


async def kill(picker: PickerProgram) -> None:
    picker.send(signal.SIGKILL)
    await picker.ended()


async def freeze(picker: PickerProgram) -> None:
    picker.send(signal.SIGSTOP)


async def leave(picker: PickerProgram) -> None:
    picker.send(signal.SIGTERM)


async def restart(picker: PickerProgram) -> None:
    await kill(picker)
    await picker.start()


async def recovered(
    picker: PickerProgram, how: Callable[..., object], fronts: Sequence[RunningEnvoy]
) -> None:
    """It serves again, and each Envoy knows it."""
    if how is freeze:
        picker.send(signal.SIGCONT)
    elif how is not restart:
        await picker.ended()
        await picker.start()
    for front in fronts:
        await eventually(lambda front=front: knows_all_pickers(front))


async def knows_all_pickers(front: RunningEnvoy) -> bool:
    async with aiohttp.ClientSession() as client, client.get(f"{front.admin}/clusters?format=json") as answer:
        clusters = (await answer.json(content_type=None))["cluster_statuses"]
    [pickers] = [one["host_statuses"] for one in clusters if one["name"] == "picker"]
    return not any(one["health_status"].get("failed_active_health_check") for one in pickers)


async def until_idle(pickers: Sequence[PickerProgram]) -> None:
    async with asyncio.timeout(60):
        while any([await one.in_flight() for one in pickers]):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("envoys", [1, 3])
@pytest.mark.parametrize("how", [kill, freeze, leave, restart])
async def test_no_request_under_way_fails(
    envoys: int, how: Callable[..., object], figure: Callable[[str], None]
) -> None:
    """Each picker in turn; what comes meanwhile waits little."""
    chance = random.Random(27)
    worker = Worker()
    newest: list[float] = []
    counts = []
    async with stage(envoys, worker) as (pickers, fronts), AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        for turn in range(TURNS):
            worker.asked = 0
            asking = [
                asyncio.create_task(
                    ask(client, fronts[at % envoys], chance.uniform(0.2, 5.0), stream=at % 4 < 2)
                )
                for at in range(REQUESTS)
            ]
            await eventually(lambda: worker.asked == REQUESTS)  # each has its pick
            counts.append(sum(not one.done() for one in asking))
            new = asyncio.create_task(newcomers(client, fronts))
            hurt = pickers[turn % len(pickers)]
            await how(hurt)  # type: ignore[misc]  # each is a coroutine function
            came, became = await new, await asyncio.gather(*asking)
            assert not [one for one, _ in came if one], "the other picker is there for new ones"
            failed = [one for one in became if one]
            assert not failed, failed
            newest += [seconds for _, seconds in came]
            await recovered(hurt, how, fronts)
            await until_idle(pickers)
    assert min(counts) > REQUESTS / 4, counts
    newest.sort()
    assert newest[-1] < LONGEST
    figure(
        f"{how.__name__} of a picker of 2 behind {envoys}, {TURNS} times: 0 of {REQUESTS} failed, {min(counts)} to {max(counts)} "
        f"of them under way; of {len(newest)} new ones the median took {newest[len(newest) // 2]:.2f} s, the slowest {newest[-1]:.2f} s"
    )


async def test_a_picker_alone_that_starts_again_costs_only_what_comes_meanwhile(
    figure: Callable[[str], None],
) -> None:
    worker = Worker()
    async with stage(1, worker, count=1) as ([picker], fronts), AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        asking = [asyncio.create_task(ask(client, fronts[0], 4.0, stream=at % 2 == 0)) for at in range(50)]
        await eventually(lambda: worker.asked == len(asking))
        new = asyncio.create_task(newcomers(client, fronts))
        await restart(picker)
        came, became = await new, await asyncio.gather(*asking)
        failed = [one for one, _ in came if one]
        assert not [one for one in became if one], became
        assert all(one.startswith("503 ") and "picker_unavailable" in one for one in failed), failed
        await until_idle([picker])
        await asked_until(lambda: ask(client, fronts[0], 0.0, stream=False), lambda found: found == "")
        figure(
            f"restart of a picker alone: 0 of {len(became)} under way failed, {len(failed)} of {len(came)} new ones got 503"
        )
