"""Fault catalogue, rows 13-15 and 22: what the bytes of an answer can be. Real sockets, shortened durations."""

import asyncio
from functools import partial

import pytest

from discovery.kubernetes import Cluster
from discovery.watch import WatchState
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.faults import (
    Fault,
    answers,
    broken_before_headers,
    drip,
    gzipped,
    html,
    mapped,
    no_answer,
    sends,
)
from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.over_http import LONG_WATCHES, assert_changes_arrive, watching
from tests.kubernetes.fake.world import World, within


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


async def test_row_14_a_slice_of_a_thousand(server: FakeApiServer, cluster: World) -> None:
    async with watching(cluster, Cluster(server.url)) as recorder:
        many = [endpoint(f"10.1.{i >> 8}.{i & 255}", f"p{i}") for i in range(1, 1001)]
        server.api.put("endpointslices", endpoint_slice("big", *many))
        await within(3, lambda: len(recorder.names) == 1002)
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
    [
        html(200),
        html(502),
        answers(302, b"", Location="http://127.0.0.1:9/"),
        answers(204, b""),
        broken_before_headers,
        no_answer,
    ],
    ids=["200 html", "502 html", "redirect", "204", "reset", "silence"],
)
async def test_row_22_not_an_api_server(server: FakeApiServer, cluster: World, fault: Fault) -> None:
    async with watching(cluster, Cluster(server.url), LONG_WATCHES) as recorder:
        server.api.faults.add(fault, times=None)
        since, begun = len(server.api.calls), asyncio.get_running_loop().time()
        server.api.end_watches()
        await asyncio.sleep(0.45)
        took = asyncio.get_running_loop().time() - begun
        assert len(server.api.calls) - since <= 6 + took / 0.1, "0.01 s, doubling up to 0.2 s"
        await within(1, lambda: recorder.stream.health.state is WatchState.DEGRADED)
        assert recorder.names == {"a", "b"}
        server.api.faults.clear()
        await assert_changes_arrive(cluster, recorder, 1.5)
