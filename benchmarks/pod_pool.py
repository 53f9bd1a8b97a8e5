"""Measures an InferencePool of 1,000 Pods beside the EndpointSlices of the same Pods, in turns.

Time to sync: from opening the watch to the last of 1,000 Added events. An event: from the socket to what a reader gets. The
fake API server is a process of its own (`benchmarks.pool_api`). `python -m benchmarks.pod_pool KIND URL` measures memory.
"""

import asyncio
import gc
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.pool_api import PODS
from benchmarks.process_usage import percentile, resident_megabytes
from discovery import InstanceEventStream, MetadataClient, SourceDiscovery
from discovery.kubernetes import (
    Cluster,
    ClusterTransport,
    KubernetesSource,
    PodsSource,
    PoolReference,
    ServiceSelection,
)
from discovery.metadata.silence import SilenceTimings

_KINDS: Final = ("pods", "slices")
_ROUNDS: Final = 6
_EVENTS: Final = 20
BURST: Final = 100


async def main() -> None:
    """Prints the figures of benchmarks/README.md."""
    async with pool_api() as (url, orders):
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(_ROUNDS):
            for kind in _KINDS:
                await _measure(kind, url, orders, found)
        for label, seconds in found.items():
            p50, p90 = (percentile(seconds, share) * 1e3 for share in (0.5, 0.9))
            print(f"{label}: {p50:.2f} ms (p50), {p90:.2f} ms (p90)")
        for kind in _KINDS:
            print(f"{kind}: {PODS} held: +{await _resident_growth(kind, url):.1f} MB resident")


@asynccontextmanager
async def pool_api() -> AsyncIterator[tuple[str, asyncio.StreamWriter]]:
    """The address of `benchmarks.pool_api`, and where its orders go."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.pool_api"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), process.stdin
    finally:
        process.kill()
        await process.wait()


async def _measure(kind: str, url: str, orders: asyncio.StreamWriter, found: dict[str, list[float]]) -> None:
    gc.collect()
    started, used = time.perf_counter(), time.process_time()
    async with watching(kind, url, "many", PODS) as stream:
        found[f"{kind}: time to sync"].append(time.perf_counter() - started)
        found[f"{kind}: processor time to sync"].append(time.process_time() - used)
        for _ in range(_EVENTS):
            await asyncio.sleep(0.02)
            found[f"{kind}: processor time of an event after a pause"].append(
                await change(kind, stream, orders, 1)
            )
        for _ in range(2):
            found[f"{kind}: processor time of an event among others"].append(
                await change(kind, stream, orders, BURST)
            )


async def change(kind: str, stream: InstanceEventStream, orders: asyncio.StreamWriter, count: int) -> float:
    """Returns the processor seconds of each of so many events, one after the other."""
    orders.write(f"{kind} {count}\n".encode())
    used = time.process_time()
    for _ in range(count):
        await anext(stream)
    return (time.process_time() - used) / count


@asynccontextmanager
async def watching(kind: str, url: str, pool: str, count: int) -> AsyncIterator[InstanceEventStream]:
    """A watch that has delivered its first `count` instances."""
    transport = ClusterTransport(Cluster(url))
    source: KubernetesSource | PodsSource = KubernetesSource(transport, "default", ServiceSelection())
    if kind == "pods":
        source = PodsSource(transport, "default", PoolReference(pool))
    nobody_is_asked = MetadataClient(silence=SilenceTimings.detected_within(0))  # the Pods are nowhere
    async with (
        SourceDiscovery(source, client=nobody_is_asked, sync_timeout=90.0) as service,
        service.watch("dynamo", "decode") as stream,
    ):
        for _ in range(count):
            await anext(stream)
        yield stream


async def _resident_growth(kind: str, url: str) -> float:
    """Returns the MB that the instances add to the resident set of a separate process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.pod_pool", kind, url), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    return float(printed)


async def _print_memory(kind: str, url: str) -> None:
    async with watching("pods", url, "few", 1):
        gc.collect()
        before = resident_megabytes()
        async with watching(kind, url, "many", PODS):
            gc.collect()
            print(f"{resident_megabytes() - before:.1f}", flush=True)


if __name__ == "__main__":
    asyncio.run(_print_memory(*sys.argv[1:]))
