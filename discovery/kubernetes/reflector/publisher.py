"""Makes snapshots of instances from a reflector's events: the instances and their grace, loss of sync, the none-ready warning."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

from adsum.tasks import cancel_and_wait
from discovery.copy_on_write import CopyOnWriteDict
from discovery.errors import ForbiddenError
from discovery.instance import Instance
from discovery.kubernetes.api.refusal import PolicyRule, explain_refusal
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.reflector.recovery import (
    ObjectDeleted,
    ObjectsListed,
    ObjectUpdated,
    ReflectorEvent,
    SyncLost,
    SyncRestored,
)
from discovery.source import Candidate, PersistentSnapshot, Report, is_ready

T = TypeVar("T", bound=Any)  # an object of the API: it has metadata.name

_log = logging.getLogger(__name__)

_EXPIRED_AT_ONCE: Final = 1000


class InstanceSet(Generic[T]):
    """The instances that follow from the objects of the cluster, and those that are missing but not given up yet. Time is
    passed in. `grace`: seconds that a ready instance may be missing. One that is shown as unavailable leaves at once.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._instances: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._ready: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._excluded: dict[str, tuple[Candidate, ...]] = {}
        self._missing: dict[str, float] = {}

    def names(self) -> Iterable[str]:
        """The names of all objects."""
        raise NotImplementedError

    def put(self, found: T, now: float) -> bool:
        """Adds or replaces an object; returns whether the set changed."""
        raise NotImplementedError

    def remove(self, name: str, now: float) -> bool:
        """The object was deleted; returns whether the set changed."""
        raise NotImplementedError

    def unnamed(self) -> Iterable[Candidate]:
        """Candidates that belong to no instance."""
        raise NotImplementedError

    def replace(self, objects: Iterable[T], now: float) -> Iterator[bool]:
        """Replaces all objects, one at each step of the iterator, so that the caller may let other tasks run between
        them. Each step says whether the set changed.
        """
        # Objects are removed last: a pod that moved to another slice is never missing
        gone = set(self.names())
        for found in objects:
            gone.discard(found.metadata.name)
            yield self.put(found, now)
        for name in gone:
            yield self.remove(name, now)

    @property
    def expires_at(self) -> float | None:
        """When to call `expire` if nothing changes before."""
        return min(self._missing.values(), default=None)

    def snapshot(self) -> PersistentSnapshot:
        excluded = chain(chain.from_iterable(self._excluded.values()), self.unnamed())
        return PersistentSnapshot(self._instances.frozen(), self._ready.frozen(), excluded)

    def show(self, key: str, instance: Instance | None, excluded: tuple[Candidate, ...] = ()) -> bool:
        """`excluded`: candidates of that name that are no instances. Returns whether anything changed."""
        self._missing.pop(key, None)
        return self._store(key, instance, excluded)

    def miss(self, key: str, now: float) -> bool:
        """Nothing shows it any more. Returns whether anything changed."""
        if key in self._missing:
            return False
        if self._grace > 0 and is_ready(self._instances.get(key)):
            self._missing[key] = now + self._grace
            return False
        return self._store(key, None, ())

    def expire(self, now: float) -> bool:
        """Removes instances whose grace is over; returns whether there were any. A part of very many, so that the event loop
        is not held up: `expires_at` then stays in the past.
        """
        late = (key for key, deadline in self._missing.items() if deadline <= now)
        gone = list(islice(late, _EXPIRED_AT_ONCE))
        for key in gone:
            del self._missing[key]
            self._store(key, None, ())
        return bool(gone)

    def restart_grace(self, now: float) -> None:
        """The API server was lost until now: nothing could show us the missing instances."""
        self._missing = {key: max(deadline, now + self._grace) for key, deadline in self._missing.items()}

    def _store(self, key: str, instance: Instance | None, excluded: tuple[Candidate, ...]) -> bool:
        known = self._instances.get(key)
        if known == instance and self._excluded.get(key, ()) == excluded:
            return False
        if known != instance:
            _put(self._instances, key, instance)
            _put(self._ready, key, instance if is_ready(instance) else None)
        if excluded:
            self._excluded[key] = excluded
        else:
            self._excluded.pop(key, None)
        return True


def _put(into: CopyOnWriteDict[Instance], key: str, instance: Instance | None) -> None:
    if instance is not None:
        into[key] = instance
    else:
        into.pop(key, None)


_YIELD_AFTER: Final = 0.005
"""Seconds of work on a list after which other tasks may run: 10,000 pods take a tenth of a second."""


class SnapshotPublisher(Generic[T]):
    """Reports the set of one component. `rule`: the right that its reflector needs in `namespace`. After
    `Timings.none_ready_warning` seconds without a ready instance one warning says why, once `explain_none_ready` was called.
    """

    def __init__(
        self, merged: InstanceSet[T], report: Report, rule: PolicyRule, namespace: str, timings: Timings
    ) -> None:
        self._explanation: tuple[str, Callable[[], Awaitable[list[Candidate]]], str] | None = None
        self._merged = merged
        self._report = report
        self._rule = rule
        self._namespace = namespace
        self._timings = timings
        self._has_synced = False
        self._is_replacing = False
        self._has_unreported = False
        self._is_lost = False
        self._grace: asyncio.TimerHandle | None = None
        self._none_ready: asyncio.TimerHandle | None = None
        self._warning: asyncio.Task[None] | None = None

    def explain_none_ready(
        self, wanted: str, explain: Callable[[], Awaitable[list[Candidate]]], otherwise: str
    ) -> None:
        """`wanted`: what there is none of. `otherwise`: the reason if `explain` finds none."""
        self._explanation = wanted, explain, otherwise

    async def apply(self, events: Iterable[ReflectorEvent[T]]) -> None:
        """Reports at most one snapshot for events that came together. ForbiddenError when the first list is refused."""
        changed = False
        for event in events:
            match event:
                case SyncLost():
                    if changed:
                        self._publish()
                    changed = False
                    self._mark_lost(event)
                case ObjectsListed(objects):
                    changed |= await self._replace(objects)
                case _:
                    changed |= self._apply_one(event)
        if changed:
            self._publish()
        self._schedule_expiry()

    def sync_restored(self, event: SyncRestored) -> None:
        if self._apply_one(event):
            self._publish()
        self._schedule_expiry()

    def set_changed(self) -> None:
        """The set changed by something else than an event. Half of a list is not reported."""
        self._has_unreported = True
        if self._has_synced and not self._is_replacing:
            self._publish()

    def report_next_list(self) -> None:
        """Report the next list even if it changes nothing."""
        self._has_unreported = True

    def report_now(self) -> None:
        """Report the set though no list has arrived: it is known to be complete."""
        self._has_synced = True
        self._publish()
        self._schedule_expiry()

    async def aclose(self) -> None:
        for timer in (self._grace, self._none_ready):
            if timer is not None:
                timer.cancel()
        if self._warning is not None:
            await cancel_and_wait(self._warning)

    def _apply_one(self, event: ObjectUpdated[T] | ObjectDeleted | SyncRestored) -> bool:
        """Returns whether there is something to report."""
        now = self._timings.clock()
        restored = self._mark_restored(now)
        match event:
            case ObjectUpdated(updated):
                return self._merged.put(updated, now) or restored
            case ObjectDeleted(name):
                return self._merged.remove(name, now) or restored
            case SyncRestored():
                return restored

    async def _replace(self, objects: tuple[T, ...]) -> bool:
        # An object that was missing, and whose grace ends meanwhile, may be in a part of this list that is not merged yet
        self._cancel_expiry()
        now = self._timings.clock()
        changed = self._mark_restored(now) or not self._has_synced
        started = time.perf_counter()
        self._is_replacing = True
        try:
            for step_changed in self._merged.replace(objects, now):
                changed |= step_changed
                if time.perf_counter() - started > _YIELD_AFTER:
                    await asyncio.sleep(0)
                    started = time.perf_counter()
        finally:
            self._is_replacing = False
        self._has_synced = True
        return changed or self._has_unreported

    def _mark_lost(self, lost: SyncLost) -> None:
        reason = explain_refusal(lost.code, lost.reason, self._rule, self._namespace)
        # Before the first list nobody depends on us, and a missing Role is a mistake to report at once; afterwards the
        # known set stays, whatever the server answers
        if lost.code == 403 and not self._has_synced:
            raise ForbiddenError(reason)
        if self._has_synced and not self._is_lost:
            _log.warning("lost the Kubernetes API server, the last known set stays: %s", reason)
        self._is_lost = True
        self._report.degraded(reason)

    def _mark_restored(self, now: float) -> bool:
        restored, self._is_lost = self._is_lost, False
        if restored:
            self._merged.restart_grace(now)
            if self._has_synced:
                _log.info("the Kubernetes API server answers again")
        return restored

    def _publish(self) -> None:
        self._has_unreported = False
        snapshot = self._merged.snapshot()
        self._report(snapshot)
        self._schedule_warning(empty=not snapshot.instances)

    def _schedule_expiry(self) -> None:
        """Not while the API server is lost: it could not tell us that a missing pod is in another slice now."""
        self._cancel_expiry()
        expires_at = self._merged.expires_at
        if expires_at is not None and not self._is_lost:
            delay = expires_at - self._timings.clock()
            self._grace = asyncio.get_running_loop().call_later(delay, self._expire)

    def _cancel_expiry(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _expire(self) -> None:
        if self._merged.expire(self._timings.clock()):
            self._publish()
        self._schedule_expiry()

    def _schedule_warning(self, *, empty: bool) -> None:
        if not empty and self._none_ready is not None:
            self._none_ready.cancel()
            self._none_ready = None
        elif empty and self._none_ready is None:
            self._none_ready = asyncio.get_running_loop().call_later(
                self._timings.none_ready_warning, self._warn_if_none_ready
            )

    def _warn_if_none_ready(self) -> None:
        if self._explanation is not None and (self._warning is None or self._warning.done()):
            self._warning = asyncio.ensure_future(self._warn(*self._explanation))

    async def _warn(
        self, wanted: str, explain: Callable[[], Awaitable[list[Candidate]]], otherwise: str
    ) -> None:
        found = await explain()
        _log.warning(
            "no ready %s for %g s in the Kubernetes namespace %s: %s",
            wanted,
            self._timings.none_ready_warning,
            self._namespace,
            "; ".join(f"{candidate.id}: {candidate.reason}" for candidate in found[:10]) or otherwise,
        )
