"""Pods by label selector: what happens to Pods, zones and rights. In virtual time."""

import asyncio
import logging

import pytest

from discovery import WatchState
from discovery.kubernetes import PodTargets
from tests.kubernetes.fake import faults
from tests.kubernetes.fake.objects import node
from tests.kubernetes.fake.world import PodWorld, within

IN_VIRTUAL_TIME = True


@pytest.fixture
def world() -> PodWorld:
    return PodWorld()


async def test_pods_come_change_and_go(world: PodWorld) -> None:
    world.pod("a")
    world.pod("b", ready=False)
    world.pod("other", labels={"app": "web"})
    async with world.recorder() as recorder:
        assert recorder.names == {"a-rank-0"}
        world.pod("b")
        world.pod("a", ready=False)
        await asyncio.sleep(0.1)
        world.pod("a")
        await asyncio.sleep(0.1)
        world.pod("a", terminating=True)
        await asyncio.sleep(0.1)
        world.delete("a")
        await asyncio.sleep(1)
        assert sorted(recorder.transitions()[:2]) == ["+b-rank-0", "-a-rank-0:not_ready"]
        assert recorder.transitions()[2:] == ["+a-rank-0", "-a-rank-0:terminating"]


async def test_a_pod_that_vanishes_has_the_grace(world: PodWorld) -> None:
    world.pod("a")
    world.pod("b")
    async with world.recorder() as recorder:
        world.delete("a")
        world.pod("b", labels={"app": "under-repair"})
        await asyncio.sleep(0.4)
        assert recorder.transitions() == []
        await asyncio.sleep(0.2)
        assert sorted(recorder.transitions()) == ["-a-rank-0:deleted", "-b-rank-0:deleted"]


async def test_every_key_has_the_same_set(world: PodWorld) -> None:
    world.pod("a")
    async with world.discovering(PodTargets("app=vllm", (8000, 8001))) as discovery:
        for key in (("dynamo", "decode"), ("x", "y")):
            found = await discovery.list_instances(*key)
            assert [(i.id, i.port, i.namespace) for i in found] == [
                ("a-rank-0", 8000, key[0]),
                ("a-rank-1", 8001, key[0]),
            ]


async def test_explain_names_each_pod_with_its_reason(world: PodWorld) -> None:
    world.pod("a")
    world.pod("b", ready=False)
    world.pod("c", terminating=True)
    world.pod("d", annotations={"llm-d.ai/active-ports": "1"})
    async with world.discovering() as discovery:
        text = str(await discovery.explain("dynamo", "decode"))
    assert "b-rank-0 is not an instance: its pod's condition Ready is False" in text
    assert "c-rank-0 is not an instance: its pod is terminating" in text
    assert "d-rank-0 is not an instance: its pod's annotation llm-d.ai/active-ports names 1, not 8000" in text


async def test_explain_says_that_the_labels_select_nothing(world: PodWorld) -> None:
    world.pod("a", labels={"app": "web"})
    async with world.discovering() as discovery:
        text = str(await discovery.explain("dynamo", "decode"))
    assert (
        text == "pods is not an instance: no Pod in the Kubernetes namespace default has the labels app=vllm"
    )


async def test_none_ready_is_one_warning(world: PodWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.pod("a", ready=False)
    async with world.recorder():
        await asyncio.sleep(100)
    [said] = [r.message for r in caplog.records if "no ready Pod" in r.message]
    assert "a-rank-0: its pod's condition Ready is False" in said


async def test_zones_come_from_nodes_each_asked_once(world: PodWorld) -> None:
    for name, zone in (("n1", "east"), ("n2", "west")):
        world.api.put("nodes", node(name, zone))
    for i in range(6):
        world.pod(f"p{i}", node=f"n{i % 3}")
    async with world.recorder() as recorder:
        zones = {name: i.zone for name, i in recorder.instances.items()}
        assert zones == {f"p{i}-rank-0": {0: None, 1: "east", 2: "west"}[i % 3] for i in range(6)}
        assert sorted(c.name for c in world.api.asked("get", resource="nodes")) == ["n0", "n1", "n2"]
        world.pod("late", node="n1")
        await within(1, lambda: "late-rank-0" in recorder.names)
        assert recorder.instances["late-rank-0"].zone == "east", "known: no second event"
        assert recorder.transitions() == ["+late-rank-0"]


async def test_a_node_that_did_not_exist_is_asked_for_again(world: PodWorld) -> None:
    for number in range(2):
        world.pod(f"p{number}", node=f"n{number}")
    async with world.recorder() as recorder:
        await within(1, lambda: len(world.api.asked("get", resource="nodes")) == 2)
        world.api.put("nodes", node("n1", "west"))
        await within(700, lambda: recorder.instances["p1-rank-0"].zone == "west")
        world.delete("p0")
        await asyncio.sleep(7200)
        assert len(world.api.asked("get", resource="nodes")) <= 6, "not for ever, without a Pod there"


async def test_without_the_right_to_nodes_nothing_is_lost_and_only_explain_says_so(
    world: PodWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.allowed = {("list", "pods"), ("watch", "pods")}
    for i in range(40):
        world.pod(f"p{i}", node=f"n{i}")
    async with world.discovering() as discovery, discovery.watch("dynamo", "decode") as stream:
        assert len(stream.instances) == 40
        await asyncio.sleep(30)
        assert stream.health.state is WatchState.SYNCED
        assert len(world.api.asked("get", resource="nodes")) <= 16
        text = str(await discovery.explain("dynamo", "decode"))
        assert 'resources: ["nodes"]' in text
        assert "ClusterRole" in text
        world.api.put("nodes", node("n7", "east"))
        world.api.allowed = None
        await within(1300, lambda: stream.instances["p7-rank-0"].zone == "east")
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "junk",
    [
        b'{"type":"MODIFIED","object":{"metadata":}}\n',
        b'{"type":"ADDED","object":null}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"},"spec":{"nodeName":7}}}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"},"more":' + b"[" * 50_000 + b"\n",
    ],
)
async def test_one_bad_line_is_survived(world: PodWorld, junk: bytes) -> None:
    world.pod("a")
    async with world.recorder() as recorder:
        world.api.faults.add(faults.preceded(junk), on="watch", resource="pods")
        world.api.end_watches()
        await asyncio.sleep(0.5)
        world.pod("c")
        await within(5, lambda: "c-rank-0" in recorder.names)
        assert recorder.transitions() == ["+c-rank-0"]
