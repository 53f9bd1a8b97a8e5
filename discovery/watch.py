"""The set of instances, replaced as a whole by its one writer, and the event streams that tell each reader what changed."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Never, Self

from discovery.copy_on_write import FrozenDict
from discovery.events import (
    InstanceAddedEvent,
    InstanceEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    diff,
)
from discovery.instance import Instance

_LONGEST_TURN: Final = 0.005
"""Seconds in which `async for` returns events before other tasks run: `__anext__` does not suspend while there are events."""

_HEALTH_INTERVAL: Final = 1.0
"""Seconds between two looks; an outage that is over before is not reported."""


class WatchState(StrEnum):
    SYNCED = "synced"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class WatchHealth:
    """SYNCED: the source is up to date. DEGRADED: the source is out of reach, and the set is the last one known.

    `since`: when the state began, on the clock of `time.monotonic()`. Readers decide how old is too old.
    """

    state: WatchState
    since: float
    reason: str | None = None


class HealthChanges:
    """Tells people when the source of a watch goes out of reach, and when it answers again: calls `tell` with one line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._degraded = False

    def note(self, health: WatchHealth) -> None:
        degraded = health.state is WatchState.DEGRADED
        if degraded and not self._degraded:
            self._tell(f"the source is out of reach: {health.reason}; the last known workers stay")
        elif self._degraded and not degraded:
            self._tell("the source answers again")
        self._degraded = degraded

    async def follow(self, read: Callable[[], WatchHealth]) -> Never:
        """Until cancelled. `read`: the health now."""
        while True:
            self.note(read())
            await asyncio.sleep(_HEALTH_INTERVAL)


class Subscription:
    """One reader of a `Truth`. `wake` is set after every change; `dirty` has the ids that changed since it was emptied."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.wake = asyncio.Event()
        self.dirty = set(ids)


class Truth:
    """The instances as the source of truth reports them. One task writes; any number of readers subscribe.

    Readers share this one set. Each keeps only what was reported to it, so that no queue can overflow.
    """

    def __init__(self) -> None:
        self.instances: Mapping[str, Instance] = FrozenDict()
        self.known: Mapping[str, Instance] = FrozenDict()
        self.health = WatchHealth(WatchState.DEGRADED, time.monotonic(), "not synced yet")
        self.synced = False
        self.error: BaseException | None = None
        self.generation = 0
        self._subscriptions: set[Subscription] = set()

    def replace(
        self,
        instances: Mapping[str, Instance],
        known: Mapping[str, Instance],
        changed: Iterable[str],
        health: WatchHealth | None = None,
    ) -> None:
        """Replace the whole set. `changed` has at least the ids that differ; `health` None: SYNCED."""
        self.instances, self.known, self.synced = instances, known, True
        if health is not None:
            self.health = health
        elif self.health.state is not WatchState.SYNCED:
            self.health = WatchHealth(WatchState.SYNCED, time.monotonic())
        self._notify(changed)

    def degrade(self, reason: str) -> None:
        """Keep the set; mark it as possibly out of date."""
        # the time since when the set may be out of date, also if the reason changes
        since = self.health.since if self.health.state is WatchState.DEGRADED else time.monotonic()
        self.health = WatchHealth(WatchState.DEGRADED, since, reason)
        self._notify(())

    def fail(self, error: BaseException) -> None:
        """Every reader raises `error`, now and later."""
        self.error = error
        self._notify(())

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """A subscription for the duration of the block; all present ids begin as changed."""
        subscription = Subscription(self.instances)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def _notify(self, ids: Iterable[str]) -> None:
        self.generation += 1
        for subscription in self._subscriptions:
            subscription.dirty.update(ids)
            subscription.wake.set()


class InstanceEventStream:
    """The changes of one component's instances, one event at a time.

    `async with` waits for the first snapshot and raises the source's error if there is one. `async for` then yields an
    Added for each instance of it, and every later change. A slow reader gets the difference to what it read last, so
    that an instance that came and went in between is never seen, and memory is O(instances).
    """

    def __init__(self, attach: Callable[[], AbstractAsyncContextManager[Truth]]) -> None:
        self._attach = attach
        self._resources = AsyncExitStack()
        self._truth: Truth | None = None
        self._subscription = Subscription(())
        self._closed = False
        self._delivered: dict[str, Instance] = {}
        self._pending: Iterator[InstanceEvent] = iter(())
        self._pending_generation = -1
        self._turn_began = time.monotonic()

    async def __aenter__(self) -> Self:
        await self._enter_once()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def instances(self) -> Mapping[str, Instance]:
        """READY instances by id, live and read-only. Unread events are already included."""
        return MappingProxyType(self._require_truth().instances)

    @property
    def health(self) -> WatchHealth:
        return self._require_truth().health

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InstanceEvent:
        """Waits for a change. Raises the source's final error; StopAsyncIteration after `aclose`."""
        if self._closed:
            raise StopAsyncIteration
        truth = await self._enter_once()
        if time.monotonic() - self._turn_began > _LONGEST_TURN:
            await asyncio.sleep(0)
            self._turn_began = time.monotonic()
        while not self._closed:
            event = self._next(truth)
            if event is not None:
                return event
            if truth.error is not None:
                raise truth.error
            self._subscription.wake.clear()
            await self._subscription.wake.wait()
            self._turn_began = time.monotonic()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the iteration, also while it waits, and free what the stream holds. Any task may call it."""
        self._closed = True
        self._subscription.wake.set()
        await self._resources.aclose()

    async def _enter_once(self) -> Truth:
        if self._closed:
            raise RuntimeError("the stream is closed; `watch` again")
        if self._truth is None:
            truth = await self._resources.enter_async_context(self._attach())
            self._subscription = self._resources.enter_context(truth.subscribe())
            self._truth = truth
            if self._closed:  # another task closed it while this one waited for the first snapshot
                await self._resources.aclose()
        return self._truth

    def _require_truth(self) -> Truth:
        if self._truth is None:
            raise RuntimeError(
                "the stream is not entered yet: use `async with discovery.watch(...) as stream`"
            )
        return self._truth

    def _next(self, truth: Truth) -> InstanceEvent | None:
        # `diff` is lazy and compares with the present set: after a change it begins again, with all ids still dirty
        if self._pending_generation != truth.generation:
            self._pending = diff(
                self._delivered, truth.instances, truth.known, tuple(self._subscription.dirty)
            )
            self._pending_generation = truth.generation
        event = next(self._pending, None)
        if event is None:
            self._subscription.dirty.clear()
            return None
        self._record_delivery(event)
        if self._delivered.get(event.instance_id) is truth.instances.get(event.instance_id):
            self._subscription.dirty.discard(event.instance_id)
        return event

    def _record_delivery(self, event: InstanceEvent) -> None:
        match event:
            case InstanceRemovedEvent(instance):
                del self._delivered[instance.id]
            case InstanceAddedEvent(instance) | InstanceUpdatedEvent(_, instance):
                self._delivered[instance.id] = instance
