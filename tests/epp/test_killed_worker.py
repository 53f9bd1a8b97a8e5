"""SIGKILL of a worker that holds no GET: how soon a whole picker stops to pick it."""

import asyncio
import contextlib
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
from epp.config.settings import Settings
from epp.server import PickerServer
from tests.epp.epp_program import LOCAL, epp_program
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
    settings = Settings(
        host="127.0.0.1", grpc_port=0, grpc_health_port=0, metrics_port=0, secure_serving=False, discovery=where, **changes
    )  # fmt: skip
    async with PickerServer(settings) as picker:
        address = dict(word.split("=") for word in picker.ready_line.split()[1:])
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
async def test_a_death_is_one_line_in_the_log(kind: str, tmp_path: Path) -> None:
    """It says who, why, and what follows."""
    root = f"file://{tmp_path}"
    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        workers = [
            await stack.enter_async_context(
                simulator("--instance-id", f"w{at}", "--discovery", root, "--port", str(port))
            )
            for at, port in enumerate(ports)
        ]
        url = root if kind == "filesystem" else "static://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        running = await stack.enter_async_context(
            epp_program(*LOCAL, "--namespace=default", "--component=default", "--discovery", url)
        )
        assert running.stdout is not None
        assert running.stderr is not None
        ready = (await running.stdout.readline()).decode()
        metrics = dict(word.split("=") for word in ready.split()[1:])["metrics"]
        async with asyncio.timeout(90):
            while not await pages_are_read(metrics):
                await asyncio.sleep(0.05)
        workers[0].process.kill()
        said: list[str] = []
        patience = 90.0  # until it is noticed
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(patience):
                    line = (await running.stderr.readline()).decode()
                assert line, "the picker ended"
                of_it = "w0 " in line or f":{ports[0]}" in line
                if of_it and " is there" not in line and " serves " not in line:
                    said.append(line)
                    patience = 5.0  # further parts told of it for 3 s
        assert len(said) == 1, said
        assert "WARNING" in said[0]
        assert "is avoided until it answers" in said[0]
