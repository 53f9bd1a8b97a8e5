"""Clients of a dispatcher's front door send bodies of 10 MB, all but their last bytes, and stay."""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.probe import probe_for
from benchmarks.attacks.stage.stalled_clients import stalled_clients
from benchmarks.attacks.stage.victim import started

SECONDS = 5.0
CLIENTS, SIZE = 60, 10_000_000
CONFIG = """
broker: memory://
http: {host: 127.0.0.1, port: 0}
targets: [{name: pool, url: "http://127.0.0.1:9"}]
queues: [{name: batch, target: pool, gate: {type: constant}}]
front_door: {queue: batch}
"""


async def attack(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "dispatcher.yaml")
        config.write_text(CONFIG)  # noqa: ASYNC240  # before anything is measured
        async with started("dispatcher", "--config", str(config)) as victim:
            quiet, before = await probe_for(victim.url("/healthz", "http"), 2.0), victim.megabytes
            async with stalled_clients(victim.ports["http"], CLIENTS, SIZE):
                await asyncio.sleep(SECONDS)
                under = await probe_for(victim.url("/healthz", "http"), SECONDS)
                figures.add("who asks for /healthz", quiet, under)
                figures.add("memory", f"{before:.0f} MB", f"{victim.megabytes:.0f} MB")
