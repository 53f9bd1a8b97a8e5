"""Measures EndpointSlices: processor time of an event, how long listing 10,000 pods blocks the loop, and their memory.

The bytes come from `benchmarks.recorded_api`, a process of its own. Ours is the whole way from the socket to the event
that a reader gets: split, decode, merge, diff. Theirs is the `Watch` of kubernetes-asyncio and ends at its model of the
slice: merging and comparing would come on top. Both take turns in one run.
"""

import asyncio
import gc
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.process_usage import percentile
from benchmarks.recorded_api import ENDPOINTS, NAMESPACE, SLICES
from benchmarks.stalls import Stalls
from discovery import InstanceEventStream, MetadataClient, SourceDiscovery
from discovery.kubernetes import Cluster, ClusterTransport, KubernetesSource, ServiceSelection
from discovery.metadata.silence import SilenceTimings

_ROUNDS = 10
_EVENTS = 42
"""Of one round; even, so that it leaves the slice as it found it."""
_RELISTS = 9


@dataclass(frozen=True, slots=True)
class RecordedServer:
    url: str
    _orders: asyncio.StreamWriter

    def order(self, *words: object) -> None:
        self._orders.write(" ".join(map(str, words)).encode() + b"\n")


async def main() -> None:
    """Prints the figures of benchmarks/README.md."""
    from benchmarks.kubernetes_asyncio_watch import TheirSlices

    gc.freeze()  # the thousand modules of their client are not for our collections to walk through
    async with recorded_api() as server:
        for client in ("ours", "theirs"):
            print(
                f"{client}: 10,000 pods listed and held: +{await resident_growth(server, client):.0f} MB resident"
            )
        single: dict[str, list[float]] = defaultdict(list)
        steady: dict[str, list[float]] = defaultdict(list)
        async with (
            watching(server, "few") as few,
            watching(server, "many") as many,
            TheirSlices(server.url, "few") as slices,
            aclosing(slices.events()) as theirs,
        ):
            for _ in range(_ROUNDS):
                for label, watch, stream in (
                    ("ours, 100 pods", "ours few", few),
                    ("ours, 10,000 pods", "ours many", many),
                    ("theirs", "theirs few", theirs),
                ):
                    steady[label].append(await burst(server, stream, watch))
                    single[label] += await events(server, stream, watch)
        _print("an event among others", steady, 1e6, "µs")
        _print("an event after a pause", single, 1e6, "µs")
        stalls: dict[str, list[float]] = defaultdict(list)
        async with TheirSlices(server.url, "many") as slices:
            for _ in range(_RELISTS):
                for label, longest in (
                    await _stall_of_their_list(slices) | await stalls_of_our_lists(server)
                ).items():
                    stalls[label].append(longest)
        _print("longest turn of the loop", stalls, 1e3, "ms")


def _print(figure: str, measured: dict[str, list[float]], scale: float, unit: str) -> None:
    for label, seconds in measured.items():
        p50, p90 = (percentile(seconds, share) * scale for share in (0.5, 0.9))
        print(f"{label}: {figure}: {p50:.0f} {unit} (p50), {p90:.0f} {unit} (p90) of processor time")


@asynccontextmanager
async def recorded_api() -> AsyncIterator[RecordedServer]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.recorded_api"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield RecordedServer((await process.stdout.readline()).decode().strip(), process.stdin)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def watching(server: RecordedServer, component: str) -> AsyncIterator[InstanceEventStream]:
    """A watch that has delivered the initial set."""
    async with open_discovery(server) as service, service.watch(NAMESPACE, component) as stream:
        await read(stream, SLICES[component] * ENDPOINTS)
        yield stream


def open_discovery(server: RecordedServer) -> SourceDiscovery:
    transport = ClusterTransport(Cluster(server.url, NAMESPACE))
    # the pods of the recording are nowhere
    nobody_is_asked = MetadataClient(silence=SilenceTimings.detected_within(0))
    source = KubernetesSource(transport, NAMESPACE, ServiceSelection())
    return SourceDiscovery(source, client=nobody_is_asked, sync_timeout=90.0)


async def read(stream: AsyncIterator[object], count: int) -> None:
    for _ in range(count):
        await anext(stream)


async def events(server: RecordedServer, stream: AsyncIterator[Any], watch: str) -> list[float]:
    """Returns the processor seconds from a change to its event, for each event of a round."""
    costs = []
    for _ in range(_EVENTS):
        server.order(watch, "changed")
        started = time.process_time()
        await anext(stream)
        costs.append(time.process_time() - started)
    return costs


async def burst(server: RecordedServer, stream: AsyncIterator[Any], watch: str) -> float:
    """Returns the processor seconds for each event of a burst."""
    server.order(watch, "burst")
    started = time.process_time()
    await read(stream, ENDPOINTS)
    return (time.process_time() - started) / ENDPOINTS


async def stalls_of_our_lists(server: RecordedServer) -> dict[str, float]:
    """Returns the processor seconds of the longest loop iteration while 10,000 pods are listed."""
    found = {}
    pods = SLICES["many"] * ENDPOINTS
    async with open_discovery(server) as service:
        with Stalls() as stalls:
            stream = await service.watch(NAMESPACE, "many").__aenter__()
            await read(stream, pods)
        found["ours, first list"] = stalls.longest
        with Stalls() as stalls:
            server.order("ours many expired")
            server.order("ours many changed")
            await anext(stream)
            server.order("ours many changed")
            await anext(stream)
        found["ours, listed again, nothing new"] = stalls.longest
        with Stalls() as stalls:
            server.order("swap")
            server.order("ours many expired")
            await read(stream, 2 * pods)
        found["ours, listed again, all pods replaced"] = stalls.longest
    return found


async def _stall_of_their_list(slices: Any) -> dict[str, float]:
    with Stalls() as stalls:
        await slices.list()
    return {"theirs, list": stalls.longest}


async def resident_growth(server: RecordedServer, client: str) -> float:
    """Returns the MB that 10,000 pods add to the resident set of a separate process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.kubernetes_memory", client, server.url),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return float(printed)
