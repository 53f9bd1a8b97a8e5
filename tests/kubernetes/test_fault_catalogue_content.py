"""Fault catalogue, rows 37 and 38: what slices may hold, and updates that mean nothing. In virtual time."""

import asyncio

import pytest

from tests.kubernetes.fake.objects import endpoint, endpoint_slice
from tests.kubernetes.fake.rv_log import Object
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import World, within

IN_VIRTUAL_TIME = True


NOT_PODS: list[tuple[str, Object]] = [
    ("placeholder", endpoint_slice("x")),
    ("null endpoints", endpoint_slice("x") | {"ports": [{"name": "http", "port": 1}]}),
    ("empty lists", endpoint_slice("x") | {"endpoints": [], "ports": []}),
    ("no targetRef", endpoint_slice("x", endpoint("10.1.0.9"))),
    ("null targetRef", endpoint_slice("x", endpoint("10.1.0.9", targetRef=None))),
    (
        "a Node",
        endpoint_slice("x", endpoint("10.1.0.9", targetRef={"kind": "Node", "name": "n", "uid": "u"})),
    ),
    ("FQDN", endpoint_slice("x", endpoint("worker.example"), kind="FQDN")),
    ("null ports", endpoint_slice("x", endpoint("10.1.0.9", "w")) | {"ports": None}),
    ("another port", endpoint_slice("x", endpoint("10.1.0.9", "w"), ports={"grpc": 9000})),
    ("a port without number", endpoint_slice("x", endpoint("10.1.0.9", "w")) | {"ports": [{"name": "http"}]}),
]


@pytest.mark.parametrize("strange", [s for _, s in NOT_PODS], ids=[name for name, _ in NOT_PODS])
async def test_row_37_what_is_no_worker_is_no_event(bare: World, strange: Object) -> None:
    bare.put(endpoint_slice("one", endpoint("10.1.0.1", "a")))
    async with bare.recorder() as recorder:
        bare.put(strange)
        bare.put(endpoint_slice("two", endpoint("10.1.0.2", "b")))
        await within(1, lambda: recorder.names == {"a", "b"})
        bare.log.delete("endpointslices", "default", "x")
        bare.put(endpoint_slice("two"))
        await within(1, lambda: recorder.names == {"a"})
        assert recorder.transitions() == ["+b", "-b:deleted"]
        assert len(bare.api.asked("list")) == 1, "nothing of this is an error"


@pytest.mark.parametrize("conditions", [{}, None, {"ready": None, "serving": None, "terminating": None}])
async def test_row_37_conditions_that_are_not_there(bare: World, conditions: Object | None) -> None:
    bare.put(endpoint_slice("one", endpoint("10.1.0.1", "a") | {"conditions": conditions}))
    async with bare.recorder() as recorder:
        assert recorder.names == {"a"}


async def test_row_37_bookmarks_are_no_slices(world: World) -> None:
    world.pods("a")
    world.api.limits = Limits(bookmark_period=5)
    async with world.recorder() as recorder:
        for i in range(10):
            world.log.put("pods", {"metadata": {"name": f"x{i}", "namespace": "elsewhere"}})
            await asyncio.sleep(6)
        since = len(world.api.calls)
        world.api.end_watches()
        await within(1, lambda: world.api.asked("watch", since))
        assert world.api.asked("watch", since)[0].params["resourceVersion"] == str(world.log.rv)
        assert not recorder.transitions()


async def test_row_38_labels_hints_and_the_like_are_no_events(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        for i in range(50):
            for found in world.slices():
                changed = found | {"metadata": found["metadata"] | {"managedFields": [{"time": str(i)}]}}
                hints = {"forZones": [{"name": f"z{i}"}]}
                changed["endpoints"] = [e | {"hints": hints} for e in found["endpoints"]]
                world.put(changed)
            world.change_service(labels={"round": str(i)})
            await asyncio.sleep(0.01)
        assert not recorder.transitions()


async def test_row_38_a_flapping_probe_ends_in_the_last_state(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        for i in range(101):
            world.pod("a", ready=i % 2 == 0)
            await asyncio.sleep(0.1)
        world.pod("a", ready=False)
        await within(1, lambda: recorder.names == {"b"})
