"""Event streams over one `Truth`: what they deliver, in which order, and what ends them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery import (
    Candidate,
    ComponentKey,
    DiscoveryTimeoutError,
    ForbiddenError,
    Instance,
    InstanceAddedEvent,
    InstanceEventStream,
    InstanceRemovedEvent,
    InstanceStatus,
    InstanceUpdatedEvent,
    Report,
    Snapshot,
    Source,
    SourceDiscovery,
    WatchState,
)
from discovery.events import changed_ids, diff
from discovery.watch import Truth

A = Instance("a", "n", "c", "10.0.0.1", 80, "one")
B = replace(A, id="b")


class ScriptedSource(Source):
    """A source that reports what the test gives it."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.runs = 0

    async def run(self, key: ComponentKey, report: Report) -> None:
        self.runs += 1
        self.report = report
        await self.error

    def say(self, *instances: Instance) -> None:
        assert self.report is not None
        self.report(Snapshot(tuple(Candidate(i.id, i) for i in instances)))


@asynccontextmanager
async def watched(*instances: Instance) -> AsyncIterator[tuple[ScriptedSource, InstanceEventStream]]:
    source = ScriptedSource()
    async with SourceDiscovery(source) as service:
        stream = service.watch("n", "c")
        entering = asyncio.create_task(stream.__aenter__())
        while source.report is None:
            await asyncio.sleep(0)
        assert not entering.done(), "entering waits for the first sync"
        source.say(*instances)
        await entering
        yield source, stream
        await stream.aclose()


async def test_entering_is_synced_and_iterating_replays_that_set() -> None:
    async with watched(A, B) as (_, stream):
        assert set(stream.instances) == {"a", "b"}
        assert {(await anext(stream)).instance_id, (await anext(stream)).instance_id} == {"a", "b"}


async def test_removals_come_before_additions_and_unchanged_instances_give_no_event() -> None:
    async with watched(A, B) as (source, stream):
        await anext(stream), await anext(stream)
        source.say(B, replace(A, id="c"))
        events = [await anext(stream), await anext(stream)]
        assert [(type(e).__name__, e.instance_id) for e in events] == [
            ("InstanceRemovedEvent", "a"),
            ("InstanceAddedEvent", "c"),
        ]
        source.say(B, replace(A, id="c"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)


async def test_a_slow_reader_of_very_many_events_lets_other_tasks_run() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def read() -> str:
        event = await anext(stream)
        began = time.perf_counter()
        while time.perf_counter() - began < 0.001:
            pass
        return event.instance_id

    many = [replace(A, id=f"w-{number}") for number in range(100)]
    async with watched(*many) as (_, stream):
        others = asyncio.create_task(other())
        told = {await read() for _ in many}
        others.cancel()
    assert told == {instance.id for instance in many}
    assert turns >= 10, "a hundred milliseconds of work, in turns of five"


async def test_a_change_amid_very_many_events_is_delivered_once() -> None:
    many = [replace(A, id=f"w-{number}") for number in range(50)]
    async with watched(*many) as (source, stream):
        told = {event.instance_id: event.instance for event in [await anext(stream) for _ in range(20)]}
        left = [*(replace(instance, incarnation="two") for instance in many[10:15]), *many[15:]]
        source.say(*left)
        async with asyncio.timeout(90):
            while told != {instance.id: instance for instance in left}:
                _apply(told, await anext(stream))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)


async def test_a_source_that_fails_raises_in_its_readers() -> None:
    async with watched(A) as (source, stream):
        await anext(stream)
        source.error.set_exception(ForbiddenError("needs list"))
        for _ in range(2):
            with pytest.raises(ForbiddenError, match="needs list"):
                await anext(stream)


async def test_a_source_that_refuses_at_first_raises_on_entering() -> None:
    source = ScriptedSource()
    source.error.set_exception(ForbiddenError("needs list"))
    async with SourceDiscovery(source) as service:
        with pytest.raises(ForbiddenError, match="needs list"):
            async with service.watch("n", "c"):
                pass
        with pytest.raises(ForbiddenError):
            await service.list_instances("n", "c")


async def test_a_source_out_of_reach_is_a_timeout_with_its_problem_never_an_empty_list() -> None:
    class Deaf(ScriptedSource):
        async def run(self, key: ComponentKey, report: Report) -> None:
            report.degraded("connection refused")
            await self.error

    async with SourceDiscovery(Deaf(), sync_timeout=0.05) as service:
        with pytest.raises(
            DiscoveryTimeoutError, match=r"n/c did not sync within 0.05 s: connection refused"
        ):
            await service.list_instances("n", "c", timeout=0.05)
        with pytest.raises(DiscoveryTimeoutError):
            async with service.watch("n", "c"):
                pass


async def test_a_lost_source_degrades_the_watch_and_keeps_the_set() -> None:
    async with watched(A) as (source, stream):
        assert source.report is not None
        source.report.degraded("connection refused")
        assert stream.health.state is WatchState.DEGRADED
        assert stream.health.reason == "connection refused"
        assert set(stream.instances) == {"a"}
        source.say(A)
        assert stream.health.state is WatchState.SYNCED


async def test_watchers_of_one_component_share_one_run_and_the_last_ends_it() -> None:
    source = ScriptedSource()
    async with SourceDiscovery(source) as service:
        streams = [service.watch("n", "c") for _ in range(3)]
        entering = [asyncio.create_task(stream.__aenter__()) for stream in streams]
        while source.report is None:
            await asyncio.sleep(0)
        source.say(A)
        await asyncio.gather(*entering)
        assert source.runs == 1
        for stream in streams[:2]:
            await stream.aclose()
        assert not source.error.cancelled()
        await streams[2].aclose()
        assert source.error.cancelled(), "the run ended with its last watcher"


async def test_closing_ends_a_blocked_reader_from_another_task() -> None:
    async with watched() as (_, stream):
        reader = asyncio.create_task(_read_all(stream))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(90):
            await stream.aclose()
            assert await reader == []


async def _read_all(stream: InstanceEventStream) -> list[object]:
    return [event async for event in stream]


async def test_closing_the_discovery_ends_its_streams() -> None:
    async with watched(A) as (_, stream):
        pass
    assert await _read_all(stream) == []
    with pytest.raises(RuntimeError, match="closed"):
        await stream.__aenter__()


async def test_a_stream_that_was_not_entered_raises() -> None:
    async with SourceDiscovery(ScriptedSource()) as service:
        with pytest.raises(RuntimeError, match="not entered yet"):
            _ = service.watch("n", "c").instances


@pytest.mark.parametrize(("namespace", "component"), [("", "c"), ("n", "a/b"), ("N", "c")])
async def test_invalid_names_raise_before_any_request(namespace: str, component: str) -> None:
    async with SourceDiscovery(ScriptedSource()) as service:
        with pytest.raises(ValueError, match="DNS-1123"):
            service.watch(namespace, component)
        with pytest.raises(ValueError, match="DNS-1123"):
            await service.list_instances(namespace, component)


steps = st.lists(
    st.one_of(
        st.just("read"),
        st.dictionaries(
            st.sampled_from("abc"), st.tuples(st.sampled_from("12"), st.sampled_from("xy")), max_size=3
        ),
    ),
    max_size=20,
)


@given(steps)
@settings(max_examples=200)
def test_a_reader_of_any_speed_converges(script: list[object]) -> None:
    """Removed and Added alternate strictly for each id, whatever the reader skipped."""

    async def run() -> None:
        truth = Truth()

        @asynccontextmanager
        async def attach() -> AsyncIterator[Truth]:
            yield truth

        truth.replace({}, {}, ())
        told: dict[str, Instance] = {}
        async with InstanceEventStream(attach) as stream:
            for step in [*script, "read"]:
                if isinstance(step, dict):
                    world = {
                        i: replace(A, id=i, incarnation=life, address=address)
                        for i, (life, address) in step.items()
                    }
                    truth.replace(world, world, changed_ids(truth.instances, world))
                elif (event := stream._next(truth)) is not None:
                    _apply(told, event)
            while (event := stream._next(truth)) is not None:
                _apply(told, event)
        assert told == dict(truth.instances)

    asyncio.run(run())


def _apply(told: dict[str, Instance], event: object) -> None:
    match event:
        case InstanceAddedEvent(instance):
            assert instance.id not in told, "Added alternates with Removed"
            told[instance.id] = instance
        case InstanceUpdatedEvent(old, new):
            assert told[new.id] == old != new
            assert old.incarnation == new.incarnation
            told[new.id] = new
        case InstanceRemovedEvent(instance, _):
            assert told.pop(instance.id) == instance


instances = st.builds(
    Instance,
    id=st.sampled_from("abcd"),
    namespace=st.just("n"),
    component=st.just("c"),
    address=st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    port=st.just(80),
    incarnation=st.sampled_from(["one", "two"]),
    status=st.sampled_from(InstanceStatus),
)
sets = st.lists(instances, max_size=6).map(lambda listed: {i.id: i for i in listed})


def ready(known: dict[str, Instance]) -> dict[str, Instance]:
    return {k: i for k, i in known.items() if i.status is InstanceStatus.READY}


@given(sets, sets)
def test_applying_the_difference_gives_the_set(
    before: dict[str, Instance], known: dict[str, Instance]
) -> None:
    told, truth = ready(before), ready(known)
    events = list(diff(told, truth, known, told.keys() | truth.keys()))
    removals = [isinstance(event, InstanceRemovedEvent) for event in events]
    assert removals == sorted(removals, reverse=True), "removals come first"
    for event in events:
        _apply(told, event)
    assert told == truth


@given(sets, sets)
def test_only_changed_ids_need_to_be_compared(
    before: dict[str, Instance], known: dict[str, Instance]
) -> None:
    told, truth = ready(before), ready(known)
    everything = set(map(repr, diff(told, truth, known, told.keys() | truth.keys())))
    assert set(map(repr, diff(told, truth, known, changed_ids(told, truth)))) == everything


def test_the_reason_of_a_removal_follows_from_the_known_candidates() -> None:
    old = Instance("a", "n", "c", "10.0.0.1", 80, "one")

    def reason(now: Instance | None) -> str:
        known = {"a": now} if now else {}
        event = next(iter(diff({"a": old}, ready(known), known, {"a"})))
        assert isinstance(event, InstanceRemovedEvent)
        return event.reason

    assert reason(None) == "deleted"
    assert reason(replace(old, status=InstanceStatus.NOT_READY)) == "not_ready"
    assert reason(replace(old, status=InstanceStatus.DRAINING)) == "terminating"
    assert reason(replace(old, incarnation="two")) == "replaced"
    assert reason(replace(old, incarnation="two", status=InstanceStatus.NOT_READY)) == "replaced"


def test_events_carry_shortcuts_and_match_by_position() -> None:
    old = Instance("a", "n", "c", "10.0.0.1", 80, "one")
    new = replace(old, address="10.0.0.2")
    event = InstanceUpdatedEvent(old, new)
    assert (event.instance_id, event.address, event.instance) == ("a", "10.0.0.2", new)
    match event:
        case InstanceUpdatedEvent(first, second):
            assert (first, second) == (old, new)
