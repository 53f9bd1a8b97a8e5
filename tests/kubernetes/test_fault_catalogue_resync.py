"""Fault catalogue, rows 1-5, 18-20, 23-26, 39, 40: what the server forgot, lost, or sends twice; readers that stand still.

In virtual time.
"""

import asyncio
from functools import partial

import pytest

from discovery import InstanceAddedEvent, InstanceUpdatedEvent
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import StatusError, expired, json_line, too_large
from tests.kubernetes.fake.event_recorder import recording_events
from tests.kubernetes.fake.faults import (
    Fault,
    Verb,
    after_calling,
    cut,
    healthy,
    if_watch_list,
    in_stream,
    mapped,
    other_server,
    refuses,
    sends,
)
from tests.kubernetes.fake.kinds import typed
from tests.kubernetes.fake.virtual_time import VirtualTimeLoop
from tests.kubernetes.fake.watching import Limits
from tests.kubernetes.fake.world import World, within

IN_VIRTUAL_TIME = True


async def test_row_01_410_event_at_rewatch(world: World) -> None:
    world.pods("a", "b", "c")
    async with world.recorder() as recorder:
        assert recorder.names == {"a", "b", "c"}
        world.delete("b")
        world.pod("d")
        world.expire_watches()
        await within(2, lambda: recorder.names == {"a", "c", "d"})
        assert sorted(recorder.transitions()) == ["+d", "-b:deleted"]
        assert recorder.uids == world.uids


async def test_row_01_410_event_without_a_change_is_silent(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        before = len(world.api.asked("list"))
        world.expire_watches()
        await within(2, lambda: len(world.api.asked("list")) > before)
        await within(2, lambda: world.api.watches == 1)
        assert not recorder.transitions()


@pytest.mark.parametrize(
    ("fault", "verb", "times", "expired", "seconds"),
    [
        (refuses(expired("too old resource version")), "watch", 1, True, 2),
        (in_stream(StatusError(500, "InternalError", "etcdserver: leader changed")), "watch", 1, False, 3),
        (cut(inside=0.7), "list", 3, True, 30),
        (refuses(too_large(9999, 1001)), "list", 1, True, 2),
        (in_stream(too_large(9999, 1001)), "watch", 1, False, 3),
    ],
    ids=[
        "row 02: 410",
        "row 17: 500 in the stream",
        "row 20: a relist is cut",
        "row 23: 504",
        "row 23: in the stream",
    ],
)
async def test_after_one_fault_the_set_is_right_again(
    world: World, fault: Fault, verb: Verb, times: int, expired: bool, seconds: float
) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        since = len(world.api.calls)
        world.api.faults.add(fault, on=verb, times=times)
        world.delete("a")
        (world.expire_watches if expired else world.api.end_watches)()
        await within(seconds, lambda: recorder.names == {"b"})
        assert recorder.transitions() == ["-a:deleted"]
        if verb == "list" and times == 1:  # the version itself was refused
            assert world.api.asked("list", since)[-1].params.get("resourceVersion", "") == ""


@pytest.mark.parametrize("service_too", [False, True], ids=["placeholder", "no slices"])
async def test_row_03_relist_is_empty(world: World, service_too: bool) -> None:
    world.pods("a", "b", "c")
    async with world.recorder() as recorder:
        if service_too:
            world.delete_service()
        for name in ("a", "b", "c"):
            world.log.delete("pods", "default", name)
        world.sync()
        assert bool(world.slices()) is not service_too
        world.expire_watches()
        await within(2.5, lambda: not recorder.names)
        assert sorted(recorder.transitions()) == ["-a:deleted", "-b:deleted", "-c:deleted"]


async def test_row_04_410_in_the_second_page() -> None:
    world = World(max_endpoints=1)
    world.pods("a", "b", "c", "d", "e")
    world.api.page_size = 2
    async with world.recorder() as recorder:
        assert len(recorder.names) == 5
        world.delete("e")
        world.api.faults.add(healthy, on="list")
        world.api.faults.add(refuses(expired("the continue parameter is too old", "inconsistent")), on="list")
        since = len(world.api.calls)
        world.expire_watches()
        await within(5, lambda: len(recorder.names) == 4)
        assert recorder.transitions() == ["-e:deleted"]
        tokens = [c.params.get("continue") for c in world.api.asked("list", since)]
        assert "inconsistent" not in tokens
        assert tokens[0] is None, "a list begins"
        assert tokens[2] is None, "and begins anew"


async def test_row_05_clean_end_at_the_timeout(world: World) -> None:
    world.pods("a")
    world.api.limits = Limits(longest=20)
    async with world.recorder() as recorder:
        for name in ("b", "c", "d"):
            since = len(world.api.calls)
            world.pod(name)
            seen = world.log.rv
            await within(45, lambda: len(world.api.asked("watch", since)) >= 2)  # noqa: B023 -- awaited here
            assert {c.params["resourceVersion"] for c in world.api.asked("watch", since)[1:]} == {str(seen)}
        assert recorder.transitions() == ["+b", "+c", "+d"]
        assert len(world.api.asked("list")) == 1


async def test_row_05_what_happens_between_two_watches_is_seen(world: World) -> None:
    async with world.recorder() as recorder:
        for i in range(20):
            world.pod(f"p{i}")
            world.api.end_watches()
            await within(2, partial(recorder.knows, f"p{i}"))
        assert len(world.api.asked("list")) == 1


def _no_end_mark(line: bytes) -> bytes | None:
    return None if b"initial-events-end" in line else line


_NO_PROGRESS = StatusError(500, "InternalError", "etcd watch progress: RequestWatchProgress is disabled")


@pytest.mark.parametrize(
    "broken",
    [
        refuses(StatusError(422, "Invalid", "sendInitialEvents is forbidden for watch")),
        in_stream(_NO_PROGRESS),
        mapped(_no_end_mark),
    ],
    ids=["422", "500", "no end mark"],
)
async def test_row_18_watch_list_is_never_asked_for(world: World, broken: Fault) -> None:
    world.pods("a", "b")
    world.api.faults.add(if_watch_list(broken), on="watch", times=None)
    async with world.recorder() as recorder:
        await within(10, lambda: recorder.names == {"a", "b"})
        world.pod("c")
        await within(1, lambda: "c" in recorder.names)
        watches = world.api.asked("watch")
        assert all(c.params["resourceVersion"] not in ("", "0") for c in watches)
        assert not any("sendInitialEvents" in c.params for c in watches)


async def test_row_19_a_delete_between_list_and_watch(world: World) -> None:
    """What was DELETED before the end bookmark of a WatchList is, for LIST and WATCH, a delete between the two."""
    world.pods("a", "b")
    world.api.faults.add(after_calling(lambda: world.delete("a")), on="watch")
    async with world.recorder() as recorder:
        await within(1, lambda: recorder.names == {"b"})
        assert len(world.api.asked("list")) == 1


async def test_row_20_the_first_list_is_cut(world: World) -> None:
    world.pods("a", "b", "c")
    world.api.faults.add(cut(inside=0.7), on="list", times=2)
    async with world.recorder() as recorder:
        await within(10, lambda: recorder.names == {"a", "b", "c"})
        assert [c.params.get("resourceVersion", "") for c in world.api.asked("list")] == [""] * 3


async def test_row_20_synthetic_events_do_not_turn_back_the_version(world: World) -> None:
    """A server that replays what is there, each object with its own old version, and is cut in the middle."""
    world.pods("a", "b")
    world.log.put("pods", {"metadata": {"name": "x", "namespace": "elsewhere"}})
    listed = world.log.rv
    replayed = [json_line({"type": "ADDED", "object": typed("endpointslices", s)}) for s in world.slices()]
    world.api.faults.add(sends(*replayed), on="watch")
    async with world.recorder() as recorder:
        await within(5, lambda: len(world.api.asked("watch")) >= 2)
        assert all(int(c.params["resourceVersion"]) >= listed for c in world.api.asked("watch"))
        assert not recorder.transitions()


async def test_row_24_etcd_restored_without_a_new_revision(world: World) -> None:
    world.pods("a", "b")
    backup = world.log.rv
    world.pod("c")
    world.delete("a")
    async with world.recorder() as recorder:
        assert recorder.names == {"b", "c"}
        world.log.restore(backup)
        await within(1860, lambda: recorder.names == {"a", "b"})
        world.pod("d")
        await within(1, lambda: "d" in recorder.names)
        assert recorder.uids == world.uids


async def test_row_25_a_stale_replica_answers_the_list(world: World) -> None:
    world.pods("a", "b")
    stale = FakeApi(world.log.fork())
    world.delete("b")
    async with world.recorder() as recorder:
        assert recorder.names == {"a"}
        world.api.faults.add(other_server(stale.serve), on="list")
        world.pod("c")
        world.expire_watches()
        await within(10, lambda: recorder.names == {"a", "c"})
        assert recorder.transitions() == ["+c"]


async def test_row_25_a_stale_replica_answers_the_periodic_relist(world: World) -> None:
    """A list without a version is never refused: only the version of its answer shows that it is stale."""
    world.pods("a", "b")
    stale = FakeApi(world.log.fork())
    world.delete("b")
    async with world.recorder() as recorder:
        world.api.faults.add(other_server(stale.serve), on="list")
        await within(1865, lambda: len(world.api.asked("list")) >= 3)
        world.pod("c")
        await within(2, lambda: "c" in recorder.names)
        assert recorder.transitions() == ["+c"]


async def test_row_26_the_server_loses_a_delete(world: World) -> None:
    world.pods("a", "b")
    async with world.recorder() as recorder:
        with world.log.silently():
            world.delete("a")
        await within(1860, lambda: recorder.names == {"b"})
        assert recorder.transitions() == ["-a:deleted"]


async def test_row_26_the_periodic_relist_is_silent_when_nothing_was_lost(world: World) -> None:
    """I3."""
    world.pods("a", "b")
    async with world.recorder() as recorder:
        await within(4 * 3600, lambda: len(world.api.asked("list")) >= 8)
        assert not recorder.transitions()


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
