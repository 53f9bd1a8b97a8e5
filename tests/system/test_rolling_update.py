"""Hundreds of pods replaced and moved between slices by the real controller: each uid comes once and goes once."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

from discovery import InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from tests.eventually import eventually
from tests.kubernetes.fake.event_recorder import EventRecorder
from tests.system.cluster import Cluster, Pod

PODS = 300
BATCH = 30


def counted(recorder: EventRecorder, kind: type[InstanceEvent]) -> Counter[str]:
    """How often each uid was told of."""
    events = (event for _, event in recorder.events if isinstance(event, kind))
    return Counter(event.instance.incarnation for event in events)


def uids(pods: Sequence[Pod]) -> set[str]:
    return {pod.uid for pod in pods}


async def replace(cluster: Cluster, old: Sequence[Pod], new: Sequence[str], **how: object) -> list[Pod]:
    """As a Deployment does it: new ones come, become ready, old ones terminate, are gone; a batch at a time."""
    made: list[Pod] = []
    for start in range(0, len(old), BATCH):
        fresh = await cluster.pods(new[start : start + BATCH], ready=False, **how)
        await asyncio.gather(*(cluster.probed(pod, ready=True) for pod in fresh))
        ending = old[start : start + BATCH]
        await asyncio.gather(*(cluster.terminate(pod) for pod in ending))
        await asyncio.gather(*(cluster.end(pod) for pod in ending))
        made += fresh
    return made


async def test_a_rolling_update_of_300_pods(cluster: Cluster, figure: Callable[[str], None]) -> None:
    await cluster.service()
    old = await cluster.pods([f"a-{i}" for i in range(PODS)])
    async with cluster.recorder() as recorder:
        await eventually(lambda: recorder.uids == uids(old))
        started = time.monotonic()
        new = await replace(cluster, old, [f"b-{i}" for i in range(PODS)])
        done = time.monotonic()
        await eventually(lambda: recorder.uids == uids(new))
        settled = time.monotonic()
        assert counted(recorder, InstanceAddedEvent) == Counter(uids(old) | uids(new)), "Added once each"
        assert counted(recorder, InstanceRemovedEvent) == Counter(uids(old)), "Removed once each"
        assert not counted(recorder, InstanceUpdatedEvent)
    figure(
        f"rolling update of {PODS} pods, {BATCH} at a time, {len(await cluster.slices())} slices: {done - started:.1f} s, "
        f"the set right {settled - done:.2f} s later; every uid Added once and Removed once"
    )


async def test_a_changed_port_moves_every_endpoint_and_nobody_goes(
    cluster: Cluster, figure: Callable[[str], None]
) -> None:
    """The controller writes slice by slice, so that an endpoint is in two of them for a moment, or in none."""
    await cluster.service()
    pods = await cluster.pods([f"a-{i}" for i in range(PODS)])
    async with cluster.recorder() as recorder:
        await eventually(lambda: recorder.uids == uids(pods))
        added = len(recorder.events)
        took = []
        for port in (8081, 8082, 8083):
            started = time.monotonic()
            ports = [{"name": "http", "port": 8080, "targetPort": port, "protocol": "TCP"}]
            await cluster.change_service({"spec": {"ports": ports}})
            await eventually(lambda port=port: {i.port for i in recorder.instances.values()} == {port})
            took.append(time.monotonic() - started)
        assert len(recorder.instances) == PODS
        assert not counted(recorder, InstanceRemovedEvent)
        assert len(counted(recorder, InstanceAddedEvent)) == added == PODS
    figure(f"targetPort of {PODS} pods changed: {statistics.median(took):.2f} s (n=3), nobody Removed")


async def test_two_revisions_with_different_ports_stand_in_parallel_slices(cluster: Cluster) -> None:
    await cluster.service(ports={"http": "http"})
    old = await cluster.pods([f"a-{i}" for i in range(60)], ports={"http": 8080})
    async with cluster.recorder() as recorder:
        await eventually(lambda: recorder.uids == uids(old))
        half = await replace(cluster, old[:30], [f"b-{i}" for i in range(30)], ports={"http": 9090})
        await eventually(lambda: recorder.uids == uids(old[30:]) | uids(half))
        assert {i.port for i in recorder.instances.values()} == {8080, 9090}
        assert len(await cluster.slices()) >= 2
        rest = await replace(cluster, old[30:], [f"c-{i}" for i in range(30)], ports={"http": 9090})
        await eventually(lambda: recorder.uids == uids(half) | uids(rest))
        assert {i.port for i in recorder.instances.values()} == {9090}
        assert max(counted(recorder, InstanceAddedEvent).values()) == 1
        assert counted(recorder, InstanceRemovedEvent) == Counter(uids(old))


async def test_a_pod_with_two_addresses_is_one_instance(cluster: Cluster) -> None:
    """A dual-stack Service has slices of both families; losing one is no event."""
    await cluster.service(families=("IPv4", "IPv6"))
    pods = [await cluster.pod(f"a-{i}", f"fd00:244::{i + 1}") for i in range(3)]
    async with cluster.recorder() as recorder:
        await eventually(lambda: recorder.uids == uids(pods))
        await eventually_families(cluster, {"IPv4", "IPv6"})
        # the slice of IPv6 may be heard of first
        addresses = {pod.address for pod in pods}
        await eventually(lambda: {i.address for i in recorder.instances.values()} == addresses)
        start = len(recorder.events)
        await cluster.change_service({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}})
        await eventually_families(cluster, {"IPv4"})
        late = await cluster.pod("late")
        await eventually(lambda: late.uid in recorder.uids)
        assert [event.instance_id for _, event in recorder.events[start:]] == ["late"]


async def eventually_families(cluster: Cluster, families: set[str]) -> None:
    async with asyncio.timeout(90):
        while {found["addressType"] for found in await cluster.slices() if found["endpoints"]} != families:
            await asyncio.sleep(0.01)
