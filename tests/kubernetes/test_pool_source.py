"""An InferencePool that changes, goes and comes, and rights that are missing. In virtual time."""

import asyncio
import logging

import pytest

from discovery import ForbiddenError, WatchState
from discovery.kubernetes import PodTargets, PoolReference
from discovery.kubernetes.pods.selection import OLD_POOL_GROUP
from tests.kubernetes.fake.kinds import OLD_POOLS
from tests.kubernetes.fake.objects import inference_pool, old_inference_pool
from tests.kubernetes.fake.world import APP, POOL, SELECTED, PodWorld, within

THERE_IS_NONE = (
    "there is no InferencePool pool (inference.networking.k8s.io) in the Kubernetes namespace default"
)

IN_VIRTUAL_TIME = True


@pytest.fixture
def world() -> PodWorld:
    """A pool of one port, and the Pods a and b."""
    made = PodWorld()
    made.pool(8000)
    made.pod("a")
    made.pod("b")
    return made


async def test_a_pool_selects_pods_and_ports(world: PodWorld) -> None:
    world.pod("web", labels={"app": "web"})
    async with world.recorder(POOL) as recorder:
        assert {(i.id, i.port) for i in recorder.instances.values()} == {
            ("a-rank-0", 8000),
            ("b-rank-0", 8000),
        }
        assert recorder.stream.health.state is WatchState.SYNCED


async def test_another_port_is_an_update_and_nobody_goes(world: PodWorld) -> None:
    async with world.recorder(POOL) as recorder:
        world.pool(9000)
        await asyncio.sleep(1)
        assert sorted(recorder.transitions()) == ["~a-rank-0", "~b-rank-0"]
        assert {i.port for i in recorder.instances.values()} == {9000}
        recorder.start = len(recorder.events)
        world.pool(9000, 9001)
        await asyncio.sleep(1)
        assert sorted(recorder.transitions()) == ["+a-rank-1", "+b-rank-1"]
        recorder.start = len(recorder.events)
        world.pool(9000)
        await asyncio.sleep(1)
        assert sorted(recorder.transitions()) == ["-a-rank-1:deleted", "-b-rank-1:deleted"]


async def test_another_selector_moves_only_those_whom_it_concerns(world: PodWorld) -> None:
    world.pod("b", labels={**APP, "tier": "gold"})
    world.pod("c", labels={"tier": "gold"})
    async with world.recorder(POOL) as recorder:
        assert recorder.names == {"a-rank-0", "b-rank-0"}
        world.pool(8000, tier="gold")
        await asyncio.sleep(1)
        assert recorder.transitions() == ["+c-rank-0", "-a-rank-0:deleted"]
        assert recorder.names == {"b-rank-0", "c-rank-0"}
        world.pod("d", labels={"tier": "gold"})
        world.pod("e")
        await asyncio.sleep(1)
        assert recorder.names == {"b-rank-0", "c-rank-0", "d-rank-0"}


async def test_a_change_of_nothing_that_counts_is_no_event(world: PodWorld) -> None:
    async with world.recorder(POOL) as recorder:
        lists = len(world.api.asked("list", resource="pods"))
        changed = inference_pool("pool", 8000, labels=APP)
        changed["spec"]["endpointPickerRef"]["name"] = "another"
        changed["status"] = {"parents": []}
        world.api.put("inferencepools", changed)
        world.api.put("inferencepools", inference_pool("beside", 1, labels={"app": "web"}))
        await asyncio.sleep(2)
        assert recorder.transitions() == []
        assert len(world.api.asked("list", resource="pods")) == lists


async def test_a_pool_that_is_deleted_is_an_empty_set_with_a_reason(
    world: PodWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.discovering(POOL) as discovery, discovery.watch("dynamo", "decode") as stream:
        assert len(stream.instances) == 2
        world.delete_pool()
        await within(1, lambda: not stream.instances)
        assert stream.health.state is WatchState.DEGRADED
        assert stream.health.reason == THERE_IS_NONE
        text = str(await discovery.explain("dynamo", "decode"))
        assert f"the source of truth is degraded: {THERE_IS_NONE}" in text
        assert f"pool is not an instance: {THERE_IS_NONE}" in text
        assert discovery.missing("dynamo", "decode") == {"pool": THERE_IS_NONE}
        world.pool(8001)
        await within(2, lambda: {i.port for i in stream.instances.values()} == {8001})
        assert stream.health.state is WatchState.SYNCED
        assert discovery.missing("dynamo", "decode") == {}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [THERE_IS_NONE]


async def test_a_pool_that_is_not_there_yet(world: PodWorld) -> None:
    world.delete_pool()
    async with world.recorder(POOL) as recorder:
        assert recorder.stream.health.reason == THERE_IS_NONE
        assert recorder.instances == {}
        world.pool(8000, app="nobody")
        await within(2, lambda: recorder.stream.health.state is WatchState.SYNCED)
        assert recorder.instances == {}, "nobody is selected, which is no fault of the source"
        world.pool(8000)
        await within(2, lambda: recorder.names == {"a-rank-0", "b-rank-0"})


async def test_a_pool_that_is_being_deleted_counts_as_gone(world: PodWorld) -> None:
    async with world.recorder(POOL) as recorder:
        ending = inference_pool("pool", 8000, labels=APP)
        ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
        world.api.put("inferencepools", ending)
        await within(1, lambda: not recorder.instances)
        assert recorder.stream.health.reason == (
            "InferencePool pool (inference.networking.k8s.io) is being deleted"
        )


async def test_a_pool_without_a_definition_that_comes_later(world: PodWorld) -> None:
    world.api.not_installed.add("inferencepools")
    async with world.recorder(POOL) as recorder:
        reason = recorder.stream.health.reason or ""
        assert (
            "CustomResourceDefinition inferencepools.inference.networking.k8s.io is not installed" in reason
        )
        world.api.not_installed.clear()
        await within(31, lambda: recorder.names == {"a-rank-0", "b-rank-0"})
        assert recorder.stream.health.state is WatchState.SYNCED


async def test_a_pool_that_no_definition_allows(world: PodWorld) -> None:
    async with world.recorder(POOL) as recorder:
        world.api.put("inferencepools", {"metadata": {"name": "pool"}, "spec": {"selector": {}}})
        await within(1, lambda: not recorder.instances)
        assert "its spec cannot be read" in (recorder.stream.health.reason or "")
        world.pool(8000)
        await within(2, lambda: recorder.names == {"a-rank-0", "b-rank-0"})


async def test_the_older_group(world: PodWorld) -> None:
    world.api.put(OLD_POOLS, old_inference_pool("pool", 8080, APP))
    async with world.recorder(PoolReference("pool", OLD_POOL_GROUP)) as recorder:
        assert {i.port for i in recorder.instances.values()} == {8080}
        world.api.put(OLD_POOLS, old_inference_pool("pool", 8081, APP))
        await within(1, lambda: {i.port for i in recorder.instances.values()} == {8081})


@pytest.mark.parametrize(
    ("missing", "selection"), [("inferencepools", POOL), ("pods", POOL), ("pods", SELECTED)]
)
async def test_a_missing_right_is_named(
    world: PodWorld, missing: str, selection: PodTargets | PoolReference
) -> None:
    resources = {"inferencepools", "pods"} - {missing}
    world.api.allowed = {(verb, r) for verb in ("get", "list", "watch") for r in resources}
    async with world.discovering(selection) as discovery:
        with pytest.raises(ForbiddenError) as refused:
            await discovery.list_instances("dynamo", "decode")
    assert f'cannot list resource "{missing}"' in str(refused.value)
    assert f'resources: ["{missing}"]\n  verbs: [get, list, watch]' in str(refused.value)
    assert "in a Role of the namespace default" in str(refused.value)


async def test_the_rights_of_the_conformance_role_are_enough(world: PodWorld) -> None:
    resources = ("inferencepools", "pods")
    world.api.allowed = {(verb, r) for verb in ("get", "list", "watch") for r in resources}
    async with world.recorder(POOL) as recorder:
        assert recorder.names == {"a-rank-0", "b-rank-0"}
        world.pool(8001)
        await within(1, lambda: {i.port for i in recorder.instances.values()} == {8001})


async def test_a_right_to_the_pool_that_is_taken_away_keeps_the_pods(world: PodWorld) -> None:
    async with world.recorder(POOL) as recorder:
        world.api.allowed = {(verb, "pods") for verb in ("get", "list", "watch")}
        world.api.end_watches()
        await within(30, lambda: recorder.stream.health.state is WatchState.DEGRADED)
        await within(60, lambda: "inferencepools" in (recorder.stream.health.reason or ""))
        world.pod("c")
        await within(5, lambda: "c-rank-0" in recorder.names)
        assert recorder.names == {"a-rank-0", "b-rank-0", "c-rank-0"}
        await asyncio.sleep(1)
        assert "inferencepools" in (recorder.stream.health.reason or ""), "a Pod's change hides it not"
        world.api.allowed = None
        await within(60, lambda: recorder.stream.health.state is WatchState.SYNCED)
        assert recorder.transitions() == ["+c-rank-0"]


async def test_a_pool_that_changes_during_an_outage(world: PodWorld) -> None:
    async with world.recorder(POOL) as recorder:
        world.transport.down = "connection refused"
        world.api.end_watches()
        await asyncio.sleep(60)
        assert recorder.stream.health.state is WatchState.DEGRADED
        assert recorder.transitions() == []
        world.pool(9000)
        world.delete("b")
        world.transport.down = None
        await within(5, lambda: {(i.id, i.port) for i in recorder.instances.values()} == {("a-rank-0", 9000)})
        await within(5, lambda: recorder.stream.health.state is WatchState.SYNCED)
        assert sorted(recorder.transitions()) == ["-b-rank-0:deleted", "~a-rank-0"]


async def test_pods_that_may_not_be_listed_do_not_end_a_watch_that_has_begun(world: PodWorld) -> None:
    world.delete_pool()
    world.api.allowed = {(verb, "inferencepools") for verb in ("get", "list", "watch")}
    async with world.recorder(POOL) as recorder:
        world.pool(8000)
        await within(10, lambda: 'cannot list resource "pods"' in (recorder.stream.health.reason or ""))
        world.api.allowed = None
        await within(60, lambda: recorder.names == {"a-rank-0", "b-rank-0"})
