"""Requests a page of the victim again and again: the longest latency shows how long its event loop was blocked."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

from benchmarks.process_usage import percentile

_PAUSE = 0.02
TIMEOUT = 5.0
"""Seconds after which a request counts as failed."""


@dataclass(slots=True)
class Latencies:
    """`waits`: seconds until each answer; `failed`: requests that timed out, each of which is also a wait of TIMEOUT."""

    waits: list[float] = field(default_factory=list)
    failed: int = 0

    def __str__(self) -> str:
        if not self.waits:
            return "nobody asked"
        worst = f"max {max(self.waits) * 1000:.0f} ms"
        failed = f", {self.failed} without an answer" if self.failed else ""
        return f"p50 {percentile(self.waits, 0.5) * 1000:.1f} ms, {worst}{failed} (n={len(self.waits)})"


@contextlib.asynccontextmanager
async def probing(url: str) -> AsyncIterator[Latencies]:
    """Requests the page while the context is open, one request at a time; the request under way at the end counts too."""
    latencies = Latencies()
    task = asyncio.create_task(_probe(url, latencies))
    try:
        yield latencies
    finally:
        task.cancel()
        await asyncio.wait([task])


async def probe_for(url: str, seconds: float) -> Latencies:
    async with probing(url) as latencies:
        await asyncio.sleep(seconds)
    return latencies


async def _probe(url: str, latencies: Latencies) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as client:
        while True:
            started = time.perf_counter()
            try:
                async with client.get(url) as answer:
                    await answer.read()
            except (aiohttp.ClientError, TimeoutError):
                latencies.failed += 1
            except asyncio.CancelledError:
                latencies.waits.append(time.perf_counter() - started)
                raise
            latencies.waits.append(time.perf_counter() - started)
            await asyncio.sleep(_PAUSE)
