"""Tokens of service accounts that the API server made, and takes back."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from discovery import WatchState
from discovery.kubernetes import Timings
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.system.charts import render, rights
from tests.system.cluster import Cluster, write

QUICK = Timings(backoff=(0.05, 0.5), watch_timeout=(1.0, 1.0), token_refresh=0.2, short_watch=0.2)
"""A new watch every second, which shows its token."""


async def revoke(cluster: Cluster, account: str, token: str) -> None:
    """Returns once its token is worth nothing: the server remembers what it accepted for some ten seconds."""
    server = cluster.admin.server
    url = f"{server.url}/apis/discovery.k8s.io/v1/namespaces/{cluster.namespace}/endpointslices"
    await cluster.admin.delete("serviceaccounts", cluster.namespace, account)
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
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


@pytest.mark.timeout(120)
async def test_a_token_that_rotates_in_time_is_no_gap(
    cluster: Cluster, eventually: Callable[..., Awaitable[float]]
) -> None:
    await cluster.service()
    await cluster.pod("a")
    token = cluster.account / "token"
    first = token.read_text()
    async with cluster.recorder(QUICK) as recorder:
        await eventually(lambda: recorder.names == {"a"}, within=10)
        found: list[str] = []
        looking = asyncio.create_task(degradations(recorder, found))
        write(token, "")  # as it may be for a moment while it is written anew
        await cluster.pod("b")
        await eventually(lambda: recorder.names == {"a", "b"}, within=10)
        await cluster.install(rights(render("frontend", {}, "second", cluster.namespace)))
        assert token.read_text() != first
        await asyncio.sleep(2 * QUICK.token_refresh + QUICK.watch_timeout[1])  # it is read by its age
        await revoke(cluster, "frontend", first)
        await cluster.pod("c")
        await eventually(lambda: recorder.names == {"a", "b", "c"}, within=10)
        looking.cancel()
        assert found == []


@pytest.mark.timeout(120)
async def test_a_token_that_is_worth_nothing_degrades_until_there_is_another(
    cluster: Cluster, eventually: Callable[..., Awaitable[float]]
) -> None:
    await cluster.service()
    await cluster.pod("a")
    first = (cluster.account / "token").read_text()
    async with cluster.recorder(QUICK) as recorder:
        await eventually(lambda: recorder.names == {"a"}, within=10)
        await revoke(cluster, "frontend", first)
        await eventually(lambda: recorder.stream.health.state is WatchState.DEGRADED, within=20)
        assert "HTTP 401" in (recorder.stream.health.reason or "")
        assert recorder.names == {"a"}
        await cluster.install(rights(render("frontend", {}, "second", cluster.namespace)))
        await eventually(lambda: recorder.stream.health.state is WatchState.SYNCED, within=10)
        await cluster.pod("b")
        await eventually(lambda: recorder.names == {"a", "b"}, within=10)
