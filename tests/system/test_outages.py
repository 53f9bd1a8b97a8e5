"""The API server itself dies, stops, comes back, forgets: the last known set stays, its age shows, and nothing stale survives."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from discovery import SourceDiscovery, WatchState
from discovery.kubernetes import ClusterTransport, KubernetesSource, ServiceSelection, Timings
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.system.api_client import Administrator, ApiError
from tests.system.api_process import ApiProcess
from tests.system.cluster import Cluster, a_cluster
from tests.system.recording_transport import RecordingTransport


async def is_forgotten(cluster: Cluster, version: str) -> bool:
    """Whether the server has compacted that version; it does so while somebody writes."""
    exact = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    try:
        await cluster.admin.list("endpointslices", cluster.namespace, **exact)
    except ApiError as error:
        if error.status != 410:
            raise
        return True
    await cluster.admin.patch(
        "pods", cluster.namespace, "x", {"metadata": {"labels": {"turn": f"{time.monotonic_ns()}"}}}
    )
    await asyncio.sleep(0.2)
    return False


@asynccontextmanager
async def a_server(folder: Path, *arguments: str) -> AsyncIterator[Cluster]:
    """A server that the test may kill, with two ready pods, a and b."""
    with ApiProcess(arguments=arguments) as server:
        async with Administrator(server) as admin, a_cluster(admin, folder) as cluster:
            await cluster.service()
            await cluster.pods(["a", "b"])
            yield cluster


async def both(recorder: EventRecorder) -> None:
    await eventually(lambda: recorder.names == {"a", "b"})
    recorder.start = len(recorder.events)


def told(recorder: EventRecorder) -> list[str]:
    """Without the reasons: whether a pod is seen terminating before it is gone is the controller's luck."""
    return [word.partition(":")[0] for word in recorder.transitions()]


async def lost(recorder: EventRecorder) -> float:
    """The health says so; returns when, on the monotonic clock."""
    await eventually(lambda: recorder.stream.health.state is WatchState.DEGRADED)
    return time.monotonic()


async def test_a_killed_server_that_is_back_at_once_is_resumed(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    async with a_server(tmp_path) as cluster, cluster.recorder() as recorder:
        await both(recorder)
        cluster.admin.server.kill()
        await lost(recorder)
        assert recorder.names == {"a", "b"}
        await asyncio.to_thread(cluster.admin.server.start)
        back = time.monotonic()
        pods = await cluster.admin.list("pods", cluster.namespace)
        await cluster.admin.delete("pods", cluster.namespace, pods["items"][0]["metadata"]["name"])
        await eventually(lambda: recorder.names == {"b"})
        figure(
            f"API server killed and started again: set right {time.monotonic() - back:.2f} s after it is ready"
        )
        await cluster.pod("c")
        await eventually(lambda: recorder.names == {"b", "c"})
        await eventually(lambda: recorder.stream.health.state is WatchState.SYNCED)
        assert told(recorder) == ["-a", "+c"]


async def test_a_stopped_server_ends_its_watches_and_has_forgotten_their_version(tmp_path: Path) -> None:
    """What was deleted before our return is not missed: the watch is answered 410, the list shows it."""
    async with a_server(tmp_path) as cluster:
        transport = RecordingTransport(ClusterTransport(await cluster.connect()))
        source = KubernetesSource(transport, cluster.namespace, ServiceSelection())
        async with SourceDiscovery(source) as discovery, recording_events(discovery) as recorder:
            await both(recorder)
            cluster.admin.server.stop()
            await asyncio.to_thread(cluster.admin.server.start)
            await cluster.admin.delete("pods", cluster.namespace, "a")
            await cluster.pod("c")
            await eventually(lambda: recorder.names == {"b", "c"})
            assert sorted(told(recorder)) == ["+c", "-a"]
            assert transport.expired > 0, "a version of before the restart is too old after it"


async def test_a_version_that_was_compacted_while_we_were_away(tmp_path: Path) -> None:
    """Without its cache the server knows no more than etcd, which forgets within six seconds here."""
    timings = Timings(watch_timeout=(2.0, 2.0), short_watch=0.5)
    arguments = ("--watch-cache=false", "--etcd-compaction-interval=2s")
    async with a_server(tmp_path, *arguments) as cluster:
        transport = RecordingTransport(ClusterTransport(await cluster.connect(timings), timings))
        source = KubernetesSource(transport, cluster.namespace, ServiceSelection(), timings=timings)
        async with SourceDiscovery(source) as discovery, recording_events(discovery) as recorder:
            await both(recorder)
            transport.may_ask.clear()
            ended = transport.ended
            await eventually(lambda: transport.ended > ended)
            version = str(
                (await cluster.admin.list("endpointslices", cluster.namespace))["metadata"]["resourceVersion"]
            )
            await cluster.admin.delete("pods", cluster.namespace, "a")
            for name in ("x", "y", "z"):  # somebody else's writes
                await cluster.pod(name, labels={"app": "other"})
            await eventually(lambda: is_forgotten(cluster, version))
            transport.may_ask.set()
            await eventually(lambda: recorder.names == {"b"})
            assert transport.expired > 0
            assert told(recorder) == ["-a"]


async def test_a_minute_without_a_server(tmp_path: Path, figure: Callable[[str], None]) -> None:
    async with a_server(tmp_path) as cluster, cluster.recorder() as recorder:
        await both(recorder)
        cluster.admin.server.kill()
        noticed = await lost(recorder)
        since = recorder.stream.health.since
        while time.monotonic() < noticed + 60:  # a minute is what this is about
            await asyncio.sleep(0.5)
            assert recorder.transitions() == []
            assert recorder.names == {"a", "b"}
            health = recorder.stream.health
            assert (health.state, health.since) == (WatchState.DEGRADED, since)
        await asyncio.to_thread(cluster.admin.server.start)
        back = time.monotonic()
        await cluster.admin.delete("pods", cluster.namespace, "a")
        await cluster.pod("c")
        await eventually(lambda: recorder.names == {"b", "c"})
        took = time.monotonic() - back
        assert sorted(told(recorder)) == ["+c", "-a"]
        await eventually(lambda: recorder.stream.health.state is WatchState.SYNCED)
        figure(
            f"API server down for 60 s: no event, health degraded; set right {took:.2f} s after it is ready"
        )
