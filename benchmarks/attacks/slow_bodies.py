"""Clients of Envoy send bodies that are together larger than the picker may hold, all but their last bytes, and stay."""

import asyncio

from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.mesh import mesh
from benchmarks.attacks.stage.stalled_clients import stalled_clients

SECONDS = 5.0
MIB = 1024 * 1024
HELD, SIZE, CLIENTS = 64 * MIB, 4 * MIB, 24


async def attack(figures: Figures) -> None:
    limits = (f"--max-buffered-bytes={HELD}", f"--max-body-bytes={2 * SIZE}")
    async with mesh(1, *limits) as stage:
        (victim,) = stage.pickers
        quiet, before = await stage.send_for(SECONDS), victim.megabytes
        async with stalled_clients(f"127.0.0.1:{stage.port}", CLIENTS, SIZE):
            await asyncio.sleep(SECONDS)
            under = await stage.send_for(SECONDS)
            figures.add("who asks meanwhile", quiet, under)
            figures.add("memory of the picker", f"{before:.0f} MB", f"{victim.megabytes:.0f} MB")
