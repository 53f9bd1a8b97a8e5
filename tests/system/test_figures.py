"""How long it takes from kubelet's word to a watcher's event, on the real API server."""

import asyncio
import statistics
from collections.abc import Callable

from discovery import SourceDiscovery
from discovery.kubernetes import ClusterTransport, KubernetesSource, ServiceSelection
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.system.cluster import Cluster
from tests.system.recording_transport import RecordingTransport

PATCHES = 150
PACE = 0.1
"""Seconds: the controller writes 20 slices a second, as kube-controller-manager is set by default."""


async def next_told(recorder: EventRecorder, since: int) -> float:
    """When the event after number `since` was told, on the loop's clock."""
    async with asyncio.timeout(90):
        while len(recorder.events) <= since:
            await asyncio.sleep(0)
    return recorder.events[since][0]


async def test_from_a_status_patch_to_the_event(cluster: Cluster, figure: Callable[[str], None]) -> None:
    await cluster.service()
    pods = await cluster.pods([f"p-{i}" for i in range(20)])
    loop = asyncio.get_running_loop()
    took: list[float] = []
    transport = RecordingTransport(ClusterTransport(await cluster.connect()))
    source = KubernetesSource(transport, cluster.namespace, ServiceSelection())
    async with SourceDiscovery(source) as discovery, recording_events(discovery) as recorder:
        await eventually(lambda: len(recorder.instances) == 20)
        for number in range(PATCHES):
            pod = pods[number % 20]
            told, started = len(recorder.events), loop.time()
            await cluster.probed(pod, ready=number // 20 % 2 == 1)
            took.append(await next_told(recorder, told) - started)
            await asyncio.sleep(max(0.0, PACE - (loop.time() - started)))
    p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
    figure(
        f"status patch sent → event: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, "
        f"max {max(took) * 1000:.1f} ms (n={PATCHES}, 20 pods)"
    )
    lists = [asked for asked in transport.asked if "watch" not in asked]
    assert len(lists) == 1, "the watch told each change, no list had to show it"
