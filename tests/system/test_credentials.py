"""Tokens of service accounts that the API server made, and takes back."""

import asyncio

import aiohttp

from discovery import SourceDiscovery, WatchState
from discovery.kubernetes import ClusterTransport, KubernetesSource, ServiceSelection, Timings
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.system.charts import render, rights
from tests.system.cluster import Cluster, write
from tests.system.recording_transport import RecordingTransport

QUICK = Timings(backoff=(0.05, 0.5), watch_timeout=(1.0, 1.0), token_refresh=0.2, short_watch=0.2)
"""A new watch every second, which shows its token."""


async def revoke(cluster: Cluster, account: str, token: str) -> None:
    """Returns once its token is worth nothing: the server remembers what it accepted for some ten seconds."""
    server = cluster.admin.server
    url = f"{server.url}/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace}/endpointslices"
    await cluster.admin.delete("serviceaccounts", cluster.namespace, account)
    async with asyncio.timeout(90), aiohttp.ClientSession() as session:
        status = 200
        while status != 401:
            await asyncio.sleep(0.1)
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(url, headers=headers, ssl=False) as answer:
                status = answer.status


async def degradations(recorder: EventRecorder, found: list[str]) -> None:
    while True:
        health = recorder.stream.health
        if health.state is WatchState.DEGRADED:
            found.append(health.reason or "")
        await asyncio.sleep(0.01)


async def test_a_token_that_rotates_in_time_is_no_gap(cluster: Cluster) -> None:
    await cluster.service()
    await cluster.pod("a")
    token = cluster.account / "token"
    first = token.read_text()
    transport = RecordingTransport(ClusterTransport(await cluster.connect(QUICK), QUICK))
    source = KubernetesSource(transport, cluster.namespace, ServiceSelection(), timings=QUICK)
    async with SourceDiscovery(source) as discovery, recording_events(discovery) as recorder:
        await eventually(lambda: recorder.names == {"a"})
        found: list[str] = []
        looking = asyncio.create_task(degradations(recorder, found))
        write(token, "")  # as it may be for a moment while it is written anew
        await cluster.pod("b")
        await eventually(lambda: recorder.names == {"a", "b"})
        await cluster.install(rights(render("frontend", {}, "second", cluster.namespace)))
        assert token.read_text() != first
        asked = len(transport.asked)
        await eventually(lambda: len(transport.asked) >= asked + 3)  # it is read by its age
        await revoke(cluster, "frontend", first)
        await cluster.pod("c")
        await eventually(lambda: recorder.names == {"a", "b", "c"})
        looking.cancel()
        assert found == []


async def test_a_token_that_is_worth_nothing_degrades_until_there_is_another(cluster: Cluster) -> None:
    await cluster.service()
    await cluster.pod("a")
    first = (cluster.account / "token").read_text()
    async with cluster.recorder(QUICK) as recorder:
        await eventually(lambda: recorder.names == {"a"})
        await revoke(cluster, "frontend", first)
        await eventually(lambda: recorder.stream.health.state is WatchState.DEGRADED)
        assert "HTTP 401" in (recorder.stream.health.reason or "")
        assert recorder.names == {"a"}
        await cluster.install(rights(render("frontend", {}, "second", cluster.namespace)))
        await eventually(lambda: recorder.stream.health.state is WatchState.SYNCED)
        await cluster.pod("b")
        await eventually(lambda: recorder.names == {"a", "b"})
