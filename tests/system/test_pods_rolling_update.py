"""Ordinary life of the Pods of an InferencePool on the real API server: nobody is lost, and nobody is there twice."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from discovery import InstanceAddedEvent, InstanceRemovedEvent, InstanceUpdatedEvent, SourceDiscovery
from discovery.kubernetes import ClusterTransport, PodsSource, PoolReference
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.system.cluster import Cluster
from tests.system.inference_extension import POOL_GROUP, ROLE, collection, create, install, pool, rights
from tests.system.test_rolling_update import counted, replace, uids

PODS = 150
APP = {"labels": {"app": "vllm"}}


@asynccontextmanager
async def pool_recorder(cluster: Cluster, *ports: int) -> AsyncIterator[EventRecorder]:
    """A reader of the pool `pool` that remembers everything, synced, with the rights of the conformance tests."""
    await install(cluster.admin, POOL_GROUP)
    await cluster.install(rights(cluster.namespace, ROLE))
    await create(cluster, pool("pool", "vllm", *ports))
    source = PodsSource(ClusterTransport(await cluster.connect()), cluster.namespace, PoolReference("pool"))
    async with SourceDiscovery(source) as discovery, recording_events(discovery) as recorder:
        yield recorder


async def change_pool(cluster: Cluster, **spec: object) -> None:
    where = f"{collection(cluster, 'inferencepools')}/pool"
    await cluster.admin.ask("PATCH", where, {"spec": spec}, kind="application/merge-patch+json")


async def test_a_rolling_update_of_150_pods_of_a_pool(
    cluster: Cluster, figure: Callable[[str], None]
) -> None:
    old = await cluster.pods([f"a-{i}" for i in range(PODS)], **APP)
    async with pool_recorder(cluster, 8000) as recorder:
        await eventually(lambda: recorder.uids == uids(old))
        started = time.monotonic()
        new = await replace(cluster, old, [f"b-{i}" for i in range(PODS)], **APP)
        done = time.monotonic()
        await eventually(lambda: recorder.uids == uids(new))
        settled = time.monotonic()
        assert counted(recorder, InstanceAddedEvent) == Counter(uids(old) | uids(new)), "Added once each"
        assert counted(recorder, InstanceRemovedEvent) == Counter(uids(old)), "Removed once each"
        assert not counted(recorder, InstanceUpdatedEvent)
    figure(
        f"rolling update of {PODS} pods of a pool, 30 at a time: {done - started:.1f} s, the set right "
        f"{settled - done:.2f} s later; every uid Added once and Removed once"
    )


async def test_changed_target_ports_move_every_pod_and_nobody_goes(
    cluster: Cluster, figure: Callable[[str], None]
) -> None:
    pods = await cluster.pods([f"a-{i}" for i in range(PODS)], **APP)
    async with pool_recorder(cluster, 8000) as recorder:
        await eventually(lambda: recorder.uids == uids(pods))
        took = []
        for port in (8001, 8002, 8003):
            started = time.monotonic()
            await change_pool(cluster, targetPorts=[{"number": port}])
            await eventually(lambda port=port: {i.port for i in recorder.instances.values()} == {port})
            took.append(time.monotonic() - started)
        assert not counted(recorder, InstanceRemovedEvent)
        await change_pool(cluster, targetPorts=[{"number": 8003}, {"number": 8004}])
        await eventually(lambda: len(recorder.instances) == 2 * PODS)
        assert not counted(recorder, InstanceRemovedEvent)
        assert counted(recorder, InstanceAddedEvent) == Counter(dict.fromkeys(uids(pods), 2)), "one a rank"
    figure(
        f"target port of {PODS} pods of a pool changed: {statistics.median(took):.2f} s (n=3), nobody Removed"
    )


async def test_a_drained_node_loses_its_pods_and_no_others(cluster: Cluster) -> None:
    """Evicted pods terminate, others start on another node, and the node goes away."""
    for name in ("drained", "kept"):
        await cluster.admin.node(name)
    leaving = await cluster.pods([f"l-{i}" for i in range(20)], node="drained", **APP)
    staying = await cluster.pods([f"s-{i}" for i in range(20)], node="kept", **APP)
    async with pool_recorder(cluster, 8000) as recorder:
        await eventually(lambda: recorder.uids == uids(leaving) | uids(staying))
        # the server copies the zone of the node to its pods (KEP-4742): no right to nodes is needed
        assert {i.zone for i in recorder.instances.values()} == {"zone-of-drained", "zone-of-kept"}
        await asyncio.gather(*(cluster.terminate(pod) for pod in leaving))
        moved = await cluster.pods([f"m-{i}" for i in range(20)], node="kept", **APP)
        await eventually(lambda: recorder.uids == uids(staying) | uids(moved))
        await asyncio.gather(*(cluster.end(pod) for pod in leaving))
        await cluster.admin.ask("DELETE", "/api/v1/nodes/drained")
        await asyncio.sleep(1)
        assert recorder.uids == uids(staying) | uids(moved)
        assert counted(recorder, InstanceRemovedEvent) == Counter(uids(leaving))
        assert counted(recorder, InstanceAddedEvent) == Counter(uids(leaving) | uids(staying) | uids(moved))
        reasons = {e.reason for _, e in recorder.events if isinstance(e, InstanceRemovedEvent)}
        assert reasons == {"terminating"}
        assert {i.node for i in recorder.instances.values()} == {"kept"}


async def test_a_pool_that_is_deleted_and_made_again(cluster: Cluster) -> None:
    pods = await cluster.pods(["a", "b"], **APP)
    async with pool_recorder(cluster, 8000) as recorder:
        await eventually(lambda: recorder.uids == uids(pods))
        await cluster.admin.ask("DELETE", f"{collection(cluster, 'inferencepools')}/pool")
        await eventually(lambda: not recorder.instances)
        assert "there is no InferencePool pool" in (recorder.stream.health.reason or "")
        await create(cluster, pool("pool", "vllm", 8000))
        await eventually(lambda: recorder.uids == uids(pods))
        assert recorder.stream.health.reason is None
