"""EndpointSlices: what an event costs, how long a list of 10,000 pods holds up the loop, what they weigh.

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

from benchmarks.processor import percentile
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
class Recorded:
    """The server of recorded bytes."""

    url: str
    _orders: asyncio.StreamWriter

    def order(self, *words: object) -> None:
        self._orders.write(" ".join(map(str, words)).encode() + b"\n")


async def main() -> None:
    """Prints the figures of benchmarks/README.md."""
    from benchmarks.kubernetes_asyncio_watch import TheirSlices

    gc.freeze()  # the thousand modules of their client are not for our collections to walk through
    async with recorded_api() as server:
        for who in ("ours", "theirs"):
            print(f"{who}: 10,000 pods listed and held: +{await held(server, who):.0f} MB resident")
        single: dict[str, list[float]] = defaultdict(list)
        steady: dict[str, list[float]] = defaultdict(list)
        async with (
            watching(server, "few") as few,
            watching(server, "many") as many,
            TheirSlices(server.url, "few") as slices,
            aclosing(slices.events()) as theirs,
        ):
            for _ in range(_ROUNDS):
                for what, watch, stream in (
                    ("ours, 100 pods", "ours few", few),
                    ("ours, 10,000 pods", "ours many", many),
                    ("theirs", "theirs few", theirs),
                ):
                    steady[what].append(await burst(server, stream, watch))
                    single[what] += await events(server, stream, watch)
        _tell("an event among others", steady, 1e6, "µs")
        _tell("an event after a pause", single, 1e6, "µs")
        stalls: dict[str, list[float]] = defaultdict(list)
        async with TheirSlices(server.url, "many") as slices:
            for _ in range(_RELISTS):
                for what, longest in (
                    await _stalls_of_theirs(slices) | await stalls_of_lists(server)
                ).items():
                    stalls[what].append(longest)
        _tell("longest turn of the loop", stalls, 1e3, "ms")


def _tell(figure: str, measured: dict[str, list[float]], scale: float, unit: str) -> None:
    for what, seconds in measured.items():
        p50, p90 = (percentile(seconds, share) * scale for share in (0.5, 0.9))
        print(f"{what}: {figure}: {p50:.0f} {unit} (p50), {p90:.0f} {unit} (p90) of processor time")


@asynccontextmanager
async def recorded_api() -> AsyncIterator[Recorded]:
    """Starts the server, and ends it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.recorded_api"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Recorded((await process.stdout.readline()).decode().strip(), process.stdin)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def watching(server: Recorded, component: str) -> AsyncIterator[InstanceEventStream]:
    """A reader who was told all that is there."""
    async with discovery_of(server) as service, service.watch(NAMESPACE, component) as stream:
        await read(stream, SLICES[component] * ENDPOINTS)
        yield stream


def discovery_of(server: Recorded) -> SourceDiscovery:
    transport = ClusterTransport(Cluster(server.url, NAMESPACE))
    nobody_is_asked = MetadataClient(
        silence=SilenceTimings.detected_within(0)
    )  # the pods of the recording are nowhere
    source = KubernetesSource(transport, NAMESPACE, ServiceSelection())
    return SourceDiscovery(source, client=nobody_is_asked, sync_timeout=90.0)


async def read(stream: AsyncIterator[object], count: int) -> None:
    for _ in range(count):
        await anext(stream)


async def events(server: Recorded, stream: AsyncIterator[Any], watch: str) -> list[float]:
    """Processor seconds of this process from an order to its event, for each of a round."""
    costs = []
    for _ in range(_EVENTS):
        server.order(watch, "changed")
        started = time.process_time()
        await anext(stream)
        costs.append(time.process_time() - started)
    return costs


async def burst(server: Recorded, stream: AsyncIterator[Any], watch: str) -> float:
    """Processor seconds of this process for each of the events of a burst."""
    server.order(watch, "burst")
    started = time.process_time()
    await read(stream, ENDPOINTS)
    return (time.process_time() - started) / ENDPOINTS


async def stalls_of_lists(server: Recorded) -> dict[str, float]:
    """Processor seconds of the longest turn of the loop while 10,000 pods are listed."""
    found = {}
    pods = SLICES["many"] * ENDPOINTS
    async with discovery_of(server) as service:
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


async def _stalls_of_theirs(slices: Any) -> dict[str, float]:
    with Stalls() as stalls:
        await slices.list()
    return {"theirs, list": stalls.longest}


async def held(server: Recorded, who: str) -> float:
    """MB by which 10,000 pods make a process of their own larger."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.kubernetes_held", who, server.url),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return float(printed)
