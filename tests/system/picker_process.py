"""Runs a picker with one worker in a separate process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web


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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "--host", "127.0.0.1", "--secure-serving=false", "--grpc-port", "0"),
        *("--grpc-health-port", "0", "--metrics-port", "0"),
        *("--endpoint", f"127.0.0.1:{server.addresses[0][1]}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        words = (await process.stdout.readline()).decode().split()[1:]
        ports = dict(word.split("=", 1) for word in words)
        yield PickerProcess(process, int(ports["grpc"].rpartition(":")[2]), f"http://{ports['metrics']}")
    finally:
        process.terminate()
        await process.communicate()
        await server.cleanup()
