"""The profile page names the functions in which the event loop spends its time, and is off unless asked for."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.epp.local_picker import get, picker
from tests.eventually import eventually


@asynccontextmanager
async def page(*arguments: str) -> AsyncIterator[str]:
    async with picker("--endpoint=127.0.0.1:9", *arguments) as where:
        yield f"http://{where['metrics']}"


def work_for_nothing() -> None:
    """By the thread's own clock: on a busy machine 50 ms could pass without work, and the loop would mostly be idle."""
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        sum(range(1000))


async def work_without_end() -> None:
    while True:
        work_for_nothing()
        await asyncio.sleep(0.05)


async def test_it_is_off_unless_it_is_asked_for() -> None:
    async with page() as url:
        assert (await get(f"{url}/debug/profile?seconds=1"))[0] == 404
        assert "/debug/profile" not in (await get(f"{url}/"))[1]
    async with page("--enable-pprof") as url:
        assert "/debug/profile\n" in (await get(f"{url}/"))[1]


def busiest(lines: list[str]) -> str:
    """Where the loop works most; where it waits for events is no work, and a busy machine makes the most of that."""
    return next((line for line in lines if "select (" not in line), "")


async def test_it_names_what_takes_the_time() -> None:
    work = asyncio.create_task(work_without_end())
    async with page("--enable-pprof") as url:

        async def table() -> bool:
            status, text = await get(f"{url}/debug/profile?seconds=1")
            assert status == 200
            head, _, columns, *rows = text.splitlines()
            assert "samples in 1 s" in head
            assert columns.split() == ["own", "with", "calls", "function"]
            return "work_for_nothing (telemetry/test_profile.py:" in busiest(rows)

        async def stacks() -> bool:
            _, text = await get(f"{url}/debug/profile?seconds=1&format=collapsed")
            deepest, _, count = busiest(text.splitlines()).rpartition(" ")
            callers = deepest.split(";")
            named = callers[-1].startswith("work_for_nothing (")
            return named and callers[-2].startswith("work_without_end (") and int(count) > 0

        await eventually(table)
        await eventually(stacks)
    work.cancel()


async def test_what_makes_no_sense_is_refused_and_so_is_a_second_profile_unless_its_client_left() -> None:
    async with page("--enable-pprof") as url:
        for query in ("=0", "=61", "=x", "=-1", "=1e9", "=1&format=svg"):
            found, said = await get(f"{url}/debug/profile?seconds{query}")
            assert (found, said[:20]) == (400, "expected ?seconds=1 "), query

        async def profile_long() -> None:
            while (await get(f"{url}/debug/profile?seconds=60"))[0] == 409:
                await asyncio.sleep(0.01)

        long = asyncio.create_task(profile_long())

        async def status() -> int:
            return (await get(f"{url}/debug/profile?seconds=1"))[0]

        async with asyncio.timeout(90):
            while await status() != 409:
                await asyncio.sleep(0.01)
            long.cancel()
            while await status() != 200:
                await asyncio.sleep(0.01)
