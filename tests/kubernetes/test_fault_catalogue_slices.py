"""Fault catalogue, rows 31-39: what slices do when nothing is broken, and readers that are slow. In virtual time."""

import asyncio
from functools import partial

import pytest

from discovery import InstanceAddedEvent, InstanceUpdatedEvent
from tests.kubernetes.fake.objects import SERVICE, endpoint, endpoint_slice
from tests.kubernetes.fake.rv_log import Object
from tests.kubernetes.fake.virtual_time import VIRTUAL, Backend, VirtualTimeLoop
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.witness import witnessing
from tests.kubernetes.fake.world import World, steps_apart, within


@pytest.fixture
def anyio_backend() -> Backend:
    return VIRTUAL


@pytest.fixture
def bare() -> World:
    """No Service and no controller: the slices are made by hand."""
    world = World()
    world.delete_service()
    world.sync()
    return world


def put(world: World, *slices: Object) -> None:
    for one in slices:
        world.api.put("endpointslices", one)


async def test_row_31_moves_are_no_events(bare: World) -> None:
    a, b = endpoint("10.1.0.1", "a"), endpoint("10.1.0.2", "b")
    put(bare, endpoint_slice("one", a, b), endpoint_slice("two"))
    async with bare.witness() as witness:
        duplicate = [endpoint_slice("two", a), endpoint_slice("one", b)]
        gap = [endpoint_slice("two"), endpoint_slice("one", b, a)]
        for order in (duplicate, gap) * 3:
            await steps_apart([partial(put, bare, s) for s in order], 0.3)
        await asyncio.sleep(5)
        assert not witness.story()


async def test_row_31_a_gap_longer_than_the_grace_is_a_removal(bare: World) -> None:
    a, b = endpoint("10.1.0.1", "a"), endpoint("10.1.0.2", "b")
    put(bare, endpoint_slice("one", a, b))
    async with bare.witness() as witness:
        put(bare, endpoint_slice("one", b))
        took = await within(2, lambda: witness.names == {"b"})
        assert took == pytest.approx(0.5, abs=0.05)
        put(bare, endpoint_slice("one", b, a))
        await within(0.1, lambda: witness.names == {"a", "b"})


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"ready": False}, "not_ready"),
        ({"serving": False}, "not_ready"),
        ({"ready": False, "serving": True, "terminating": True}, "terminating"),
        ({"ready": True, "serving": True, "terminating": True}, "terminating"),
    ],
)
async def test_row_31_present_but_unavailable_waits_for_nothing(
    bare: World, conditions: dict[str, bool], reason: str
) -> None:
    put(bare, endpoint_slice("one", endpoint("10.1.0.1", "a")))
    async with bare.witness() as witness:
        put(bare, endpoint_slice("one", endpoint("10.1.0.1", "a") | {"conditions": conditions}))
        await within(0.05, lambda: not witness.names)
        assert witness.story() == [f"-a:{reason}"]


async def test_row_31_a_move_of_three_hundred_by_the_controller() -> None:
    """A changed targetPort: each endpoint moves to another slice, many with a gap. Only the port is news."""
    world = World(max_endpoints=30)
    names = [f"p{i}" for i in range(300)]
    world.pods(*names)
    async with world.witness() as witness:
        world.settled = False
        world.change_service(ports={"http": 9090})
        await steps_apart(world.controller.steps(SERVICE), 0.01)
        await within(1, lambda: {i.port for i in witness.told.values()} == {9090})
        changes = [event for _, event in witness.events[witness.start :]]
        assert {type(event) for event in changes} == {InstanceUpdatedEvent}
        assert {event.instance_id for event in changes} == set(names)


async def test_row_32_one_of_many_slices_is_deleted(bare: World) -> None:
    put(
        bare,
        *[
            endpoint_slice(f"s{i}", *[endpoint(f"10.1.{i}.{j}", f"p{i}-{j}") for j in (1, 2)])
            for i in range(4)
        ],
    )
    async with bare.witness() as witness:
        bare.log.delete("endpointslices", "default", "s2")
        await within(1, lambda: len(witness.names) == 6)
        assert sorted(witness.story()) == ["-p2-1:deleted", "-p2-2:deleted"]


async def test_row_32_an_endpoint_in_two_slices_survives_one_of_them(bare: World) -> None:
    put(
        bare,
        endpoint_slice("one", endpoint("10.1.0.1", "a")),
        endpoint_slice("two", endpoint("10.1.0.1", "a")),
    )
    async with bare.witness() as witness:
        bare.log.delete("endpointslices", "default", "one")
        await asyncio.sleep(5)
        assert not witness.story()


async def test_row_33_the_service_is_deleted_and_made_again(bare: World) -> None:
    """ADDED of the new slices comes before DELETED of the old ones; one pod died in between."""
    old = endpoint_slice("old", *[endpoint(f"10.1.0.{i}", f"p{i}") for i in (1, 2, 3)])
    put(bare, old)
    async with bare.witness() as witness:
        put(bare, endpoint_slice("new", *[endpoint(f"10.1.0.{i}", f"p{i}") for i in (1, 2)]))
        await asyncio.sleep(2)
        bare.log.delete("endpointslices", "default", "old")
        await within(1, lambda: witness.names == {"p1", "p2"})
        assert witness.story() == ["-p3:deleted"]


async def test_row_33_what_a_foreground_deletion_leaves_stays_until_it_is_deleted(bare: World) -> None:
    put(bare, endpoint_slice("one", endpoint("10.1.0.1", "a")))
    async with bare.witness() as witness:
        marked = endpoint_slice("one", endpoint("10.1.0.1", "a"))
        marked["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        put(bare, marked)
        await asyncio.sleep(2)
        assert not witness.story()
        bare.log.delete("endpointslices", "default", "one")
        await within(1, lambda: not witness.names)


@pytest.mark.parametrize("address", ["10.244.0.1", "10.244.0.2"], ids=["same address", "other address"])
async def test_row_34_a_pod_is_reborn_under_its_name(world: World, address: str) -> None:
    first = world.pod("a", "10.244.0.1")
    async with world.witness() as witness:
        assert witness.uids == {first}
        world.settled = False
        world.delete("a")
        second = world.pod("a", address)
        world.sync()
        await within(1, lambda: witness.uids == {second})
        assert witness.story() == ["-a:replaced", "+a"]
        assert witness.told["a"].address == address


@pytest.mark.parametrize("first", ["old", "new"])
async def test_row_34_both_lives_in_two_slices(bare: World, first: str) -> None:
    """The new pod's slice is written before the old one's, or after: the one written last is alive."""
    put(bare, endpoint_slice("one", endpoint("10.1.0.1", "a", "uid-1")), endpoint_slice("two"))
    async with bare.witness() as witness:
        put(bare, endpoint_slice("two", endpoint("10.1.0.1", "a", "uid-2")))
        if first == "old":
            put(
                bare,
                endpoint_slice(
                    "one", endpoint("10.1.0.1", "a", "uid-1", ready=False), endpoint("10.1.0.9", "b")
                ),
            )
            put(bare, endpoint_slice("two", endpoint("10.1.0.1", "a", "uid-2", ready=True)))
        await asyncio.sleep(1)
        put(bare, endpoint_slice("one"))
        await within(1, lambda: "uid-2" in witness.uids)
        assert witness.told["a"].incarnation == "uid-2"


async def test_row_35_an_address_is_reused_while_the_old_pod_terminates(world: World) -> None:
    world.pod("old", "10.244.0.1")
    async with world.witness() as witness:
        world.pod("old", "10.244.0.1", terminating=True)
        new = world.pod("new", "10.244.0.1")
        await within(1, lambda: witness.uids == {new})
        assert witness.story() == ["-old:terminating", "+new"]
        world.delete("old")
        await asyncio.sleep(2)
        assert {i.address: i.incarnation for i in witness.told.values()} == {"10.244.0.1": new}


async def test_row_36_dual_stack_is_one_instance(world: World) -> None:
    world.change_service(families=("IPv4", "IPv6"))
    world.pod("a", "10.244.0.1", "2001:db8::1")
    world.pod("b", "2001:db8::2")
    async with world.witness() as witness:
        assert {i.id: i.address for i in witness.told.values()} == {"a": "10.244.0.1", "b": "2001:db8::2"}


async def test_row_36_the_other_family_lags_flips_and_vanishes(bare: World) -> None:
    v4 = endpoint_slice("v4", endpoint("10.1.0.1", "a", ready=True))
    put(bare, v4)

    def v6(*endpoints: Object) -> None:
        put(bare, endpoint_slice("v6", *endpoints, kind="IPv6"))

    async with bare.witness() as witness:
        for ready in (True, False, True, False, True):  # it comes late, and flips
            v6(endpoint("2001:db8::1", "a", ready=ready))
            await asyncio.sleep(1)
        v6()
        await asyncio.sleep(1)
        bare.log.delete("endpointslices", "default", "v6")
        await asyncio.sleep(1)
        assert not witness.story()
        put(bare, endpoint_slice("v4", endpoint("10.1.0.1", "a", ready=False)))
        await within(0.1, lambda: not witness.names)


async def test_row_36_losing_the_preferred_family_is_no_removal(bare: World) -> None:
    put(
        bare,
        endpoint_slice("v4", endpoint("10.1.0.1", "a")),
        endpoint_slice("v6", endpoint("2001:db8::1", "a"), kind="IPv6"),
    )
    async with bare.witness() as witness:
        bare.log.delete("endpointslices", "default", "v4")
        await within(2, lambda: witness.told["a"].address == "2001:db8::1")
        assert witness.story() == ["~a"]


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
    put(bare, endpoint_slice("one", endpoint("10.1.0.1", "a")))
    async with bare.witness() as witness:
        put(bare, strange)
        put(bare, endpoint_slice("two", endpoint("10.1.0.2", "b")))
        await within(1, lambda: witness.names == {"a", "b"})
        bare.log.delete("endpointslices", "default", "x")
        put(bare, endpoint_slice("two"))
        await within(1, lambda: witness.names == {"a"})
        assert witness.story() == ["+b", "-b:deleted"]
        assert len(bare.api.asked("list")) == 1, "nothing of this is an error"


@pytest.mark.parametrize("conditions", [{}, None, {"ready": None, "serving": None, "terminating": None}])
async def test_row_37_conditions_that_are_not_there(bare: World, conditions: Object | None) -> None:
    put(bare, endpoint_slice("one", endpoint("10.1.0.1", "a") | {"conditions": conditions}))
    async with bare.witness() as witness:
        assert witness.names == {"a"}


async def test_row_37_bookmarks_are_no_slices(world: World) -> None:
    world.pods("a")
    world.api.limits = Limits(bookmark_period=5)
    async with world.witness() as witness:
        for i in range(10):
            world.log.put("pods", {"metadata": {"name": f"x{i}", "namespace": "elsewhere"}})
            await asyncio.sleep(6)
        since = len(world.api.calls)
        world.api.end_watches()
        await within(1, lambda: world.api.asked("watch", since))
        assert world.api.asked("watch", since)[0].params["resourceVersion"] == str(world.log.rv)
        assert not witness.story()


async def test_row_38_labels_hints_and_the_like_are_no_events(world: World) -> None:
    world.pods("a", "b")
    async with world.witness() as witness:
        for i in range(50):
            for found in world.slices():
                changed = found | {"metadata": found["metadata"] | {"managedFields": [{"time": str(i)}]}}
                hints = {"forZones": [{"name": f"z{i}"}]}
                changed["endpoints"] = [e | {"hints": hints} for e in found["endpoints"]]
                put(world, changed)
            world.change_service(labels={"round": str(i)})
            await asyncio.sleep(0.01)
        assert not witness.story()


async def test_row_38_a_flapping_probe_ends_in_the_last_state(world: World) -> None:
    world.pods("a", "b")
    async with world.witness() as witness:
        for i in range(101):
            world.pod("a", ready=i % 2 == 0)
            await asyncio.sleep(0.1)
        world.pod("a", ready=False)
        await within(1, lambda: witness.names == {"b"})


async def test_row_39_a_reader_that_does_not_read_for_ten_minutes(world: World) -> None:
    """I6: what waits for it is the difference, not the history."""
    world.pods("a", "b")
    async with world.discovering() as discovery, discovery.watch("dynamo", "decode") as stream:
        first = {(await anext(stream)).instance_id, (await anext(stream)).instance_id}
        assert first == {"a", "b"}
        for i in range(6000):
            world.pod("a", ready=i % 2 == 1)
            if i % 10 == 0:
                world.pod(f"short-{i}")
                world.delete(f"short-{i}")
            await asyncio.sleep(0.1)
        world.pod("c")
        await asyncio.sleep(2)
        waiting: list[str] = []
        while len(waiting) < 10:
            try:
                async with asyncio.timeout(1):
                    event = await anext(stream)
            except TimeoutError:
                break
            waiting.append(event.instance_id)
            assert isinstance(event, InstanceAddedEvent | InstanceUpdatedEvent)
        assert waiting == ["c"]
        assert len(world.api.asked("list")) <= 2, "one more is the periodic one"


async def test_row_39_the_loop_is_blocked_for_five_seconds(world: World) -> None:
    """The server closed the watch of a reader that was too slow; it is resumed."""
    world.pods("a")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with world.witness() as witness:
        world.delete("a")
        world.pod("b")
        loop.stop_the_world(5)
        world.api.end_watches()
        await within(2, lambda: witness.names == {"b"})
        assert len(world.api.asked("list")) == 1


async def test_row_40_stopped_for_ten_minutes_costs_one_relist(world: World) -> None:
    world.pods("a", "b")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with world.discovering(relist=(7200.0, 7200.0)) as discovery, witnessing(discovery) as witness:
        await asyncio.sleep(1)
        world.delete("a")
        world.lose_watches()
        loop.stop_the_world(600)
        await within(5, lambda: witness.names == {"b"})
        await asyncio.sleep(60)
        assert len(world.api.asked("list")) == 2
