"""Fault catalogue, rows 5, 7-15, 22: what happens to the connection and to its bytes. Real sockets, shortened durations.

Rows 9 and 12 also belong to `make test-system`, where a network namespace drops the packets.
"""

import asyncio
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import discovery
from discovery.kubernetes import Cluster, ClusterTransport
from discovery.watch import WatchState
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.chaos_proxy import ChaosProxy, SynBlackHole
from tests.kubernetes.fake.faults import (
    Fault,
    answers,
    cut,
    drip,
    gzipped,
    html,
    mapped,
    no_answer,
    sends,
)
from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.over_http import (
    FAST,
    LONG_WATCHES,
    PATIENT,
    assert_changes_arrive,
    assert_refused,
    fields_of,
    watching,
)
from tests.kubernetes.fake.world import World, within


async def test_the_whole_way_by_url(server: FakeApiServer, cluster: World) -> None:
    async with discovery.open(f"kubernetes://default?server={server.url}") as service:
        found = await service.list_instances("dynamo", "decode")
        assert [(i.id, i.port, i.node) for i in found] == [("a", 8080, "node-a"), ("b", 8080, "node-a")]
        assert {i.incarnation for i in found} == cluster.uids
        async with asyncio.timeout(90), service.watch("dynamo", "decode") as stream:
            assert {(await anext(stream)).instance_id, (await anext(stream)).instance_id} == {"a", "b"}
            cluster.pod("a", ready=False)
            gone = await anext(stream)
            assert (gone.instance_id, getattr(gone, "reason", None)) == ("a", "not_ready")


async def test_row_05_watches_that_time_out(server: FakeApiServer, cluster: World) -> None:
    short = replace(PATIENT, watch_timeout=FAST.watch_timeout)
    async with watching(cluster, Cluster(server.url), short) as recorder:
        await within(4, lambda: len(server.api.asked("watch")) >= 2)
        assert not recorder.transitions()
        assert len(server.api.asked("list")) == 1
        await assert_changes_arrive(cluster, recorder, 1)


@pytest.mark.parametrize("inside", [0.1, 0.5, 0.99])
async def test_row_07_reset_in_the_middle_of_an_event(
    server: FakeApiServer, cluster: World, inside: float
) -> None:
    async with watching(cluster, Cluster(server.url)) as recorder:
        server.api.faults.add(cut(inside=inside, how="reset"), on="watch", times=3)
        server.api.end_watches()
        await asyncio.sleep(0.1)
        await assert_changes_arrive(cluster, recorder, 1)


async def test_row_07_reset_by_something_in_between(server: FakeApiServer, cluster: World) -> None:
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url)) as recorder,
    ):
        for _ in range(5):
            proxy.reset()
            await asyncio.sleep(0.05)
        assert recorder.names == {"a", "b"}
        await assert_changes_arrive(cluster, recorder, 1)


async def test_row_07_a_proxy_that_cuts_every_connection_after_some_bytes(
    server: FakeApiServer, cluster: World
) -> None:
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url)) as recorder,
    ):
        proxy.cut_after = 700
        proxy.reset()
        for i in range(10):
            cluster.pod(f"p{i}")
            await asyncio.sleep(0.03)
        assert {"a", "b"} <= recorder.names, "I8, whatever came through"
        proxy.cut_after = None
        await within(2, lambda: recorder.uids == cluster.uids)


@pytest.mark.parametrize("how", ["end", "fin"], ids=["clean end", "bare FIN"])
async def test_row_08_half_a_line_and_the_end(server: FakeApiServer, cluster: World, how: Any) -> None:
    async with watching(cluster, Cluster(server.url)) as recorder:
        server.api.faults.add(cut(inside=0.6, how=how), on="watch", times=3)
        server.api.end_watches()
        await asyncio.sleep(0.1)
        await assert_changes_arrive(cluster, recorder, 1)


async def test_row_09_half_open_after_the_headers(server: FakeApiServer, cluster: World) -> None:
    """The deadline of the watch finds it even where the kernel of the other side still answers."""
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url), FAST) as recorder,
    ):
        proxy.mode = "pause"
        cluster.delete("a")
        await within(2.5, lambda: recorder.stream.health.state is WatchState.DEGRADED)
        assert recorder.names == {"a", "b"}
        proxy.mode = "pass"
        await within(2, lambda: recorder.names == {"b"})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's table of sockets is Linux's")
async def test_row_09_the_kernel_probes_an_idle_watch(server: FakeApiServer, cluster: World) -> None:
    """Dropped packets are found by keepalive: its timer is armed on the watch's socket, and due within 10 s."""
    async with watching(cluster, Cluster(server.url)):
        timers = [timer for port, timer in _sockets_to_loopback() if port == server.port]
        kinds = {kind for kind, _ in timers}
        assert kinds == {2}, f"tr:tm->when of /proc/net/tcp, 2 is the keepalive timer: {timers}"
        assert all(jiffies <= 10 * os.sysconf("SC_CLK_TCK") for _, jiffies in timers)


def _sockets_to_loopback() -> list[tuple[int, tuple[int, int]]]:
    """(remote port, (timer, jiffies until it is due)) of each established TCP socket over IPv4."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        (int(row[2].partition(":")[2], 16), (int(row[5][:2], 16), int(row[5][3:], 16)))
        for row in rows
        if row[3] == "01"
    ]


async def test_row_10_accepts_and_never_answers(server: FakeApiServer, cluster: World) -> None:
    async with (
        ChaosProxy(("127.0.0.1", server.port)) as proxy,
        watching(cluster, Cluster(proxy.url), FAST) as recorder,
    ):
        proxy.mode = "blackhole"
        cluster.delete("a")
        proxy.reset()
        before, begun = proxy.accepted, time.monotonic()
        await asyncio.sleep(1.2)
        most = (time.monotonic() - begun) / FAST.header_deadline + 1
        assert proxy.accepted - before <= most, "each try lasts a header deadline, then a pause"
        await within(1, lambda: proxy.accepted - before >= 2)
        await within(1, lambda: "no answer" in (recorder.stream.health.reason or ""))
        assert recorder.names == {"a", "b"}
        proxy.mode = "pass"
        await within(1.5, lambda: recorder.names == {"b"})


async def test_row_11_refused_and_back(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url)) as recorder:
        await server.stop()
        cluster.delete("a")
        server.api.log.forget()
        await within(1, lambda: recorder.stream.health.state is WatchState.DEGRADED)
        await asyncio.sleep(0.5)
        assert recorder.names == {"a", "b"}
        await server.start()
        await within(1, lambda: recorder.names == {"b"})
        await within(1, lambda: recorder.stream.health.state is WatchState.SYNCED)


async def test_row_12_syn_black_hole(cluster: World) -> None:
    with SynBlackHole() as hole:
        transport = ClusterTransport(Cluster(f"http://127.0.0.1:{hole.port}"), FAST)
        async with cluster.discovering(transport, **fields_of(FAST)) as service:
            await assert_refused(service, 0.6, "did not sync within 0.6 s", str(hole.port))


async def test_row_12_a_name_that_does_not_resolve(cluster: World) -> None:
    transport = ClusterTransport(Cluster("http://no-such-host.invalid:6443"), FAST)
    async with cluster.discovering(transport, **fields_of(FAST)) as service:
        await assert_refused(service, 0.6, "no-such-host.invalid")


def _crlf(chunk: bytes) -> bytes:
    return chunk.removesuffix(b"\n") + b"\r\n"


@pytest.mark.parametrize("fault", [drip(1), drip(7), drip(100), mapped(_crlf)], ids=["1", "7", "100", "CRLF"])
async def test_row_13_bytes_as_they_please(server: FakeApiServer, cluster: World, fault: Fault) -> None:
    """Multi-byte characters are split, and U+0085 and U+2028 are no ends of lines."""
    cluster.pod(
        "c", labels={"nvidia.com/dynamo-namespace": "dynamo", "nvidia.com/dynamo-component": "decode"}
    )
    server.api.faults.add(fault, times=None)
    async with watching(cluster, Cluster(server.url)) as recorder:
        for found in cluster.slices():
            notes = {"note": "one\u0085two\u2028three \U0001f9ed é"}
            server.api.put("endpointslices", found | {"metadata": found["metadata"] | {"annotations": notes}})
        await assert_changes_arrive(cluster, recorder, 2)
        assert len(server.api.asked("list")) == 1


async def test_row_14_a_line_of_five_mebibytes(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url)) as recorder:
        big = endpoint_slice("big", endpoint("10.1.0.1", "c"), annotations={"note": "x" * (5 * 2**20)})
        server.api.put("endpointslices", big)
        await within(3, lambda: "c" in recorder.names)
        assert len(server.api.asked("list")) == 1


async def test_row_14_a_line_without_end(server: FakeApiServer, cluster: World) -> None:
    """17 MiB and no newline: given up, asked anew, the set stays."""
    chunk = b"x" * 2**20
    async with watching(cluster, Cluster(server.url)) as recorder:
        server.api.faults.add(sends(*[chunk] * 17, stay=True), on="watch")
        server.api.end_watches()
        await within(3, lambda: len(server.api.asked("list")) == 2)
        await assert_changes_arrive(cluster, recorder, 1)


async def test_row_15_gzip_is_declined(server: FakeApiServer, cluster: World) -> None:
    """From 1.37 on WatchList streams are compressed for all who accept it."""
    async with watching(cluster, Cluster(server.url)) as recorder:
        await assert_changes_arrive(cluster, recorder, 1)
        assert {call.headers.get("Accept-Encoding") for call in server.api.calls} == {"identity"}


async def test_row_15_gzip_members_that_nobody_asked_for(server: FakeApiServer, cluster: World) -> None:
    server.api.faults.add(gzipped(), times=None)
    async with watching(cluster, Cluster(server.url)) as recorder:
        for i in range(5):
            cluster.pod(f"p{i}")
            await within(1, partial(recorder.knows, f"p{i}"))


@pytest.mark.parametrize(
    "fault",
    [html(200), answers(302, b"", Location="/elsewhere"), answers(204, b""), no_answer],
    ids=["200 html", "redirect", "204", "silence"],
)
async def test_row_22_not_an_api_server(server: FakeApiServer, cluster: World, fault: Fault) -> None:
    """Others, and for an hour: test_fault_catalogue_outages.py."""
    async with watching(cluster, Cluster(server.url), LONG_WATCHES) as recorder:
        server.api.faults.add(fault, times=None)
        since, begun = len(server.api.calls), asyncio.get_running_loop().time()
        server.api.end_watches()
        await asyncio.sleep(0.45)
        took = asyncio.get_running_loop().time() - begun
        assert len(server.api.calls) - since <= 6 + took / 0.1, "0.01 s, doubling up to 0.2 s"
        await within(1, lambda: recorder.stream.health.state is WatchState.DEGRADED)
        assert recorder.names == {"a", "b"}
        assert "/elsewhere" not in {call.path for call in server.api.calls}, "a redirect is not followed"
        server.api.faults.clear()
        await assert_changes_arrive(cluster, recorder, 1.5)
