"""SIGKILL of a worker that holds no GET: how soon a whole picker stops to pick it."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpc import aio

from benchmarks.picking.one_pick import picks_over
from epp.server import PickerServer
from tests.epp.local_picker import addresses, local
from tests.eventually import eventually
from tests.examples.test_simulator_process import simulator
from tests.free_port import free_port
from tests.model_server_process import model_server

KILLS = 3
CLAIMED = 0.1
"""Seconds, as benchmarks/README.md has it."""
PICKS_AFTER = 200


class Picks:
    """A picker, asked for one pick after the other."""

    def __init__(self, pick: Callable[[], Awaitable[str]], metrics_port: int) -> None:
        self.one = pick
        """Returns its destination."""
        self._metrics_port = metrics_port

    async def pages_are_read(self) -> bool:
        return await pages_are_read(f"127.0.0.1:{self._metrics_port}")


async def pages_are_read(metrics: str) -> bool:
    """Whether the picker with this metrics port has read the metrics page of each worker."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{metrics}/debug/endpoints") as answer,
    ):
        pool = await answer.json()
    return all(endpoint["age"] is not None for endpoint in pool["endpoints"])


@asynccontextmanager
async def picking_from(*ports: int, **changes: Any) -> AsyncIterator[Picks]:
    """A picker of workers at these ports."""
    where = "static://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    async with PickerServer(local(discovery=where, **changes)) as picker:
        address = addresses(picker)
        async with aio.insecure_channel(address["grpc"]) as channel:
            yield Picks(picks_over(channel), int(address["metrics"].rpartition(":")[2]))


async def seconds_until_unpicked(**changes: Any) -> float:
    """From SIGKILL to the last pick of the killed worker."""
    async with (
        model_server() as (process, killed),
        model_server() as (_, other),
        picking_from(killed, other, **changes) as picks,
    ):
        seen: set[str] = set()
        async with asyncio.timeout(90):
            while len(seen) < 2:
                seen.add(await picks.one())
        process.kill()
        killed_at = last = time.monotonic()
        unpicked = 0
        while unpicked < PICKS_AFTER:
            unpicked += 1
            if await picks.one() == f"127.0.0.1:{killed}":
                last, unpicked = time.monotonic(), 0
        return last - killed_at


@pytest.mark.parametrize("interval", [None, 3600.0], ids=["adaptive", "every hour"])
async def test_a_killed_worker_is_picked_no_more(
    interval: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if its page is read once an hour: the kept connection tells."""
    took = [await seconds_until_unpicked(refresh_metrics_interval=interval) for _ in range(KILLS)]
    with capsys.disabled():
        print(
            f"\nSIGKILL to the last pick: median {statistics.median(took) * 1000:.1f} ms, max {max(took) * 1000:.1f} ms"
        )
    assert statistics.median(took) < 10 * CLAIMED


@pytest.mark.parametrize("kind", ["filesystem", "static"])
async def test_a_death_is_one_line_in_the_log(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says who, why, and what follows."""
    caplog.set_level("INFO")
    root = f"file://{tmp_path}"
    ports = [free_port() for _ in range(2)]
    where = root if kind == "filesystem" else "static://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def told() -> list[str]:
        lines = [line for line in caplog.text.splitlines() if "w0 " in line or f":{ports[0]}" in line]
        begun = (" is there", " serves ", " publishes ")
        return [line for line in lines if not any(words in line for words in begun)]

    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                simulator("--instance-id", f"w{at}", "--discovery", root, "--port", str(port))
            )
            for at, port in enumerate(ports)
        ]
        settings = local(discovery=where, namespace="default", component="default")
        picker = await stack.enter_async_context(PickerServer(settings))
        await eventually(lambda: pages_are_read(addresses(picker)["metrics"]))
        workers[0].process.kill()
        await eventually(told)
        await asyncio.sleep(5.0)  # further parts told of it for 3 s
    [said] = told()
    assert "WARNING" in said
    assert "is avoided until it answers" in said
