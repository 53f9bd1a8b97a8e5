"""Runs a picker with one worker in a separate process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from tests.started import ready, started


@dataclass(frozen=True, slots=True)
class PickerProcess:
    """`port` serves ext_proc without TLS; `pages` is the URL of its metrics and of `/debug/endpoints`."""

    process: asyncio.subprocess.Process
    port: int
    pages: str

    async def picked(self) -> float:
        """Returns how many requests were routed to a worker."""
        lines = (await self._page("metrics")).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("llm_d_epp_request_total{"))

    async def is_idle(self) -> bool:
        """Returns whether no request is in flight to its worker."""
        lines = (await self._page("metrics")).splitlines()
        name = "llm_d_epp_per_endpoint_inflight_requests{"
        (count,) = (float(line.split()[-1]) for line in lines if line.startswith(name))
        return count == 0

    async def _page(self, name: str) -> str:
        async with aiohttp.ClientSession() as client, client.get(f"{self.pages}/{name}") as answer:
            return await answer.text()


@asynccontextmanager
async def picking() -> AsyncIterator[PickerProcess]:
    """The picker's worker answers 404 to every request."""
    server = web.AppRunner(web.Application())
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    ports = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--secure-serving=false")
    where = ("--host", "127.0.0.1", "--endpoint", f"127.0.0.1:{server.addresses[0][1]}")
    nowhere = asyncio.subprocess.DEVNULL
    try:
        async with started(sys.executable, "-m", "epp", *where, *ports, stderr=nowhere) as process:
            said = await ready(process)
            yield PickerProcess(process, int(said["grpc"].rpartition(":")[2]), f"http://{said['metrics']}")
            process.terminate()
            await process.communicate()
    finally:
        await server.cleanup()
