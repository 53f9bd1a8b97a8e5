"""Fault catalogue, rows 39 and 40: readers and processes that stand still. In virtual time."""

import asyncio

from discovery import InstanceAddedEvent, InstanceUpdatedEvent
from tests.kubernetes.fake.event_recorder import recording_events
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop
from tests.kubernetes.fake.world import World, within

IN_VIRTUAL_TIME = True


async def test_row_39_a_reader_that_does_not_read_for_ten_minutes(world: World) -> None:
    """I6: the difference waits for it, not the history."""
    world.pods("a", "b")
    async with (
        asyncio.timeout(3600),
        world.discovering() as discovery,
        discovery.watch("dynamo", "decode") as stream,
    ):
        first = {(await anext(stream)).instance_id, (await anext(stream)).instance_id}
        assert first == {"a", "b"}
        for i in range(1200):
            world.pod("a", ready=i % 2 == 1)
            if i % 10 == 0:
                world.pod(f"short-{i}")
                world.delete(f"short-{i}")
            await asyncio.sleep(0.5)
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
    async with world.recorder() as recorder:
        world.delete("a")
        world.pod("b")
        loop.stop_the_world(5)
        world.api.end_watches()
        await within(2, lambda: recorder.names == {"b"})
        assert len(world.api.asked("list")) == 1


async def test_row_40_stopped_for_ten_minutes_costs_one_relist(world: World) -> None:
    world.pods("a", "b")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with (
        world.discovering(relist_interval=(7200.0, 7200.0)) as discovery,
        recording_events(discovery) as recorder,
    ):
        await asyncio.sleep(1)
        world.delete("a")
        world.expire_watches()
        loop.stop_the_world(600)
        await within(5, lambda: recorder.names == {"b"})
        await asyncio.sleep(60)
        assert len(world.api.asked("list")) == 2
