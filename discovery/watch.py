"""The truth and its readers: the truth is replaced wholesale, each reader is told the difference."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import Final, Self

from discovery.copy_on_write import FrozenDict
from discovery.events import (
    InstanceAddedEvent,
    InstanceEvent,
    InstanceRemovedEvent,
    InstanceUpdatedEvent,
    changed_ids,
    diff,
)
from discovery.instance import Instance

_AT_ONCE: Final = 500
"""Events that a reader is given without others on the loop having a turn: at most some milliseconds of them."""


class WatchState(StrEnum):
    SYNCED = "synced"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class WatchHealth:
    """SYNCED: the source is heard. DEGRADED: the set is the last one known; `reason` says why.

    `since` is the moment of the change on `time.monotonic()`'s clock: readers decide what stale is.
    """

    state: WatchState
    since: float
    reason: str | None = None


class Subscription:
    """One reader's ear: `wake` is set after every change, `dirty` collects the ids that changed since it was read."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.wake = asyncio.Event()
        self.dirty = set(ids)


class Truth:
    """The set as one writer knows it; readers subscribe."""

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
        health: WatchHealth | None = None,
    ) -> None:
        """Another set takes the place of the last one. `health` None: the source was heard just now."""
        changed = changed_ids(self.instances, instances)
        self.instances, self.known, self.synced = instances, known, True
        if health is not None:
            self.health = health
        elif self.health.state is not WatchState.SYNCED:
            self.health = WatchHealth(WatchState.SYNCED, time.monotonic())
        self._changed(changed)

    def degrade(self, reason: str) -> None:
        """The set stays; readers can see that it may be old."""
        since = self.health.since if self.health.state is WatchState.DEGRADED else time.monotonic()
        self.health = WatchHealth(WatchState.DEGRADED, since, reason)
        self._changed(())

    def fail(self, error: BaseException) -> None:
        """The writer died: every reader gets `error`, now and later."""
        self.error = error
        self._changed(())

    @contextmanager
    def subscribed(self) -> Iterator[Subscription]:
        """A subscription for as long as the block lasts; the set as it stands counts as changed."""
        subscription = Subscription(self.instances)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def _changed(self, ids: Iterable[str]) -> None:
        self.generation += 1
        for subscription in self._subscriptions:
            subscription.dirty.update(ids)
            subscription.wake.set()


class InstanceEventStream:
    """The changes of one component's instances, one event at a time.

    `async with` enters when the first sync is in (an error of the source is raised there); `async for` then replays
    that set as Added events and goes on with changes. A reader that is slow is told the difference to what it was
    told last: a flap that it never read vanishes, memory is O(instances).
    """

    def __init__(self, attach: Callable[[], AbstractAsyncContextManager[Truth]]) -> None:
        self._attach = attach
        self._resources = AsyncExitStack()
        self._truth: Truth | None = None
        self._ear = Subscription(())
        self._closed = False
        self._told: dict[str, Instance] = {}
        self._pending: Iterator[InstanceEvent] = iter(())
        self._pending_generation = -1
        self._at_once = 0

    async def __aenter__(self) -> Self:
        await self._entered()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def instances(self) -> Mapping[str, Instance]:
        """READY instances by id, live and read-only; ahead of the events by what was not read yet."""
        return MappingProxyType(self._entered_truth().instances)

    @property
    def health(self) -> WatchHealth:
        return self._entered_truth().health

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InstanceEvent:
        """The next change; waits for one. Raises what ended the source, StopAsyncIteration after `aclose`."""
        if self._closed:
            raise StopAsyncIteration
        truth = await self._entered()
        if self._at_once == _AT_ONCE:
            self._at_once = 0
            await asyncio.sleep(0)
        while not self._closed:
            event = self._next(truth)
            if event is not None:
                self._at_once += 1
                return event
            if truth.error is not None:
                raise truth.error
            self._at_once = 0
            self._ear.wake.clear()
            await self._ear.wake.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the iteration, wherever it waits, and give back what the stream holds. May be called by any task."""
        self._closed = True
        self._ear.wake.set()
        await self._resources.aclose()

    async def _entered(self) -> Truth:
        if self._closed:
            raise RuntimeError("the stream is closed; `watch` again")
        if self._truth is None:
            truth = await self._resources.enter_async_context(self._attach())
            self._ear = self._resources.enter_context(truth.subscribed())
            self._truth = truth
            if self._closed:  # by another task, while this one waited for the first sync
                await self._resources.aclose()
        return self._truth

    def _entered_truth(self) -> Truth:
        if self._truth is None:
            raise RuntimeError(
                "the stream is not entered yet: use `async with discovery.watch(...) as stream`"
            )
        return self._truth

    def _next(self, truth: Truth) -> InstanceEvent | None:
        if self._pending_generation != truth.generation:
            self._pending = diff(self._told, truth.instances, truth.known, tuple(self._ear.dirty))
            self._pending_generation = truth.generation
        event = next(self._pending, None)
        if event is None:
            self._ear.dirty.clear()
            return None
        self._tell(event)
        if self._told.get(event.instance_id) is truth.instances.get(event.instance_id):
            self._ear.dirty.discard(event.instance_id)
        return event

    def _tell(self, event: InstanceEvent) -> None:
        match event:
            case InstanceRemovedEvent(instance):
                del self._told[instance.id]
            case InstanceAddedEvent(instance) | InstanceUpdatedEvent(_, instance):
                self._told[instance.id] = instance
