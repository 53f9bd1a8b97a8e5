"""Informers over HTTP: objects of a custom resource, what the Role or the cluster lacks, outages."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from discovery.kubernetes import Cluster, ClusterTransport, Timings
from discovery.kubernetes.reflector.informer import Informer
from tests.eventually import eventually
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.kubernetes.fake.faults import preceded

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
QUICK = Timings(backoff=(0.05, 0.1), relist_interval=(600.0, 600.0))


def pool(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"targetPorts": [{"number": 8000}]}}


class Changes:
    """Counts the calls of `on_change`."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@asynccontextmanager
async def informed(server: FakeApiServer, **options: Any) -> AsyncIterator[tuple[Informer, Changes]]:
    transport, changes = ClusterTransport(Cluster(server.url)), Changes()
    try:
        async with Informer(transport, POOLS, changes, QUICK, **options) as informer:
            yield informer, changes
    finally:
        await transport.aclose()


async def test_objects_come_change_and_go(server: FakeApiServer) -> None:
    server.api.put("inferencepools", pool("a"))
    async with informed(server) as (informer, changes):
        await eventually(lambda: informer.synced)
        assert informer.objects.keys() == {"a"}
        assert informer.objects["a"]["spec"] == {"targetPorts": [{"number": 8000}]}
        before = changes.count
        server.api.put("inferencepools", pool("b", tier="gold"))
        await eventually(lambda: informer.objects.keys() == {"a", "b"})
        server.api.put("inferencepools", pool("b", tier="free"))
        await eventually(lambda: informer.objects["b"]["metadata"]["labels"] == {"tier": "free"})
        server.api.log.delete("inferencepools", "default", "a")
        await eventually(lambda: informer.objects.keys() == {"b"})
        assert changes.count >= before + 3
        assert informer.problem is None


async def test_only_the_one_that_is_named(server: FakeApiServer) -> None:
    server.api.put("inferencepools", pool("a"))
    server.api.put("inferencepools", pool("b"))
    async with informed(server, name="b") as (informer, _):
        await eventually(lambda: informer.synced)
        assert informer.objects.keys() == {"b"}


async def test_a_missing_right_is_named_and_mends_itself(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.api.allowed = set()
    async with informed(server) as (informer, _):
        await eventually(lambda: informer.problem is not None)
        assert informer.problem is not None
        assert (
            'cannot list resource "inferencepools" in API group "inference.networking.k8s.io"'
            in informer.problem
        )
        assert 'resources: ["inferencepools"]\n  verbs: [get, list, watch]' in informer.problem
        assert not informer.synced
        server.api.allowed = None
        await eventually(lambda: informer.synced)
        assert informer.problem is None
    said = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1, "one warning, however often it was refused"


async def test_a_missing_crd_is_named(server: FakeApiServer) -> None:
    server.api.not_installed.add("inferencepools")
    async with informed(server) as (informer, _):
        await eventually(lambda: informer.problem is not None)
        assert informer.problem is not None
        assert (
            "CustomResourceDefinition inferencepools.inference.networking.k8s.io is not installed"
            in informer.problem
        )
        server.api.not_installed.clear()
        server.api.put("inferencepools", pool("a"))
        await eventually(lambda: informer.synced and informer.objects.keys() == {"a"})


async def test_an_outage_keeps_the_objects(server: FakeApiServer) -> None:
    server.api.put("inferencepools", pool("a"))
    async with informed(server) as (informer, _):
        await eventually(lambda: informer.synced)
        await server.stop()
        await eventually(lambda: informer.problem is not None)
        assert informer.objects.keys() == {"a"}
        server.api.log.delete("inferencepools", "default", "a")
        server.api.put("inferencepools", pool("b"))
        await server.start()
        await eventually(lambda: informer.objects.keys() == {"b"})
        await eventually(lambda: informer.problem is None)


async def test_a_fault_of_on_change_does_not_end_it(server: FakeApiServer) -> None:
    transport = ClusterTransport(Cluster(server.url))
    calls: list[int] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("a fault of the caller")

    async with Informer(transport, POOLS, fail_once, QUICK) as informer:
        await eventually(lambda: informer.synced and len(calls) >= 2)
    await transport.aclose()


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":7}}}\n',
        b'{"type":"ADDED","object":[]}\n',
        b'{"type":"OTHER","object":{}}\n',
        b'{"type":"ADDED","object":' + b"[" * 100_000 + b"\n",
        b'{"type":"ADDED","object":{"metadata":{"name":"x"},"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}}\n",
    ],
)
async def test_a_line_that_is_no_event_is_survived(server: FakeApiServer, line: bytes) -> None:
    server.api.put("inferencepools", pool("a"))
    server.api.faults.add(preceded(line), on="watch", resource="inferencepools")
    async with informed(server) as (informer, _):
        await eventually(lambda: informer.synced)
        server.api.put("inferencepools", pool("b"))
        await eventually(lambda: informer.objects.keys() == {"a", "b"})
