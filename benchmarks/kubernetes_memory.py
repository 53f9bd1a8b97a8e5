"""`python -m benchmarks.kubernetes_memory ours|theirs URL`: measures the memory of 10,000 listed pods in a separate process.

Prints the growth of the resident set from the first small Service, after which everything is imported, to `many`.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.process_usage import resident_megabytes
from benchmarks.recorded_api import NAMESPACE


async def main(who: str, url: str) -> None:
    hold = _ours if who == "ours" else _theirs
    async with hold(url, "few"):
        before = _resident()
        async with hold(url, "many"):
            print(f"{_resident() - before:.1f}", flush=True)


@asynccontextmanager
async def _ours(url: str, component: str) -> AsyncIterator[object]:
    from discovery import MetadataClient, SourceDiscovery
    from discovery.kubernetes import Cluster, ClusterTransport, KubernetesSource, ServiceSelection
    from discovery.metadata.silence import SilenceTimings

    source = KubernetesSource(ClusterTransport(Cluster(url, NAMESPACE)), NAMESPACE, ServiceSelection())
    # the pods of the recording are nowhere
    nobody_is_asked = MetadataClient(silence=SilenceTimings.detected_within(0))
    async with (
        SourceDiscovery(source, client=nobody_is_asked, sync_timeout=90.0) as service,
        service.watch(NAMESPACE, component) as stream,
    ):
        for _ in range(len(stream.instances)):
            await anext(stream)
        yield stream


@asynccontextmanager
async def _theirs(url: str, component: str) -> AsyncIterator[object]:
    from benchmarks.kubernetes_asyncio_watch import TheirSlices

    async with TheirSlices(url, component) as slices:
        listed = await slices.list()
        yield listed
        del listed  # until here it is held


def _resident() -> float:
    gc.collect()
    return resident_megabytes()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
