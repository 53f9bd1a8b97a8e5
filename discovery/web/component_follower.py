"""Follows one component for its page: what is known of it now, and what happened."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final

from adsum.tasks import cancel_and_wait
from discovery.errors import AdsumError, DiscoveryTimeoutError, MetadataUnavailableError
from discovery.events import InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, diff
from discovery.explanation import Explanation, is_faultless
from discovery.instance import Instance
from discovery.service import SourceDiscovery
from discovery.source import ComponentKey
from discovery.watch import Truth, WatchHealth, WatchState
from discovery.watch_metrics import WatchMetric, WatchMetrics
from discovery.web.component_page import ComponentState, model_name
from discovery.web.membership_log import MembershipLog

log = logging.getLogger("discovery.serve")

_TURN: Final = 0.1
"""Seconds between two looks at a component that keeps changing."""
_EVERY: Final = 5.0
"""Seconds between two explanations, at least: each asks the workers that are not ready, and the source once more."""
_SHARE: Final = 10
"""At most a tenth of the time is spent on explanations: of a slow source they are made less often."""


class ComponentFollower:
    """`source`: its URL, for people. `log`: the changes since the start."""

    def __init__(self, service: SourceDiscovery, key: ComponentKey, source: str) -> None:
        self.key = key
        self.log = MembershipLog()
        self._metrics = WatchMetrics(str(key), lambda: service.excluded(key.namespace, key.component))
        self._service = service
        self._source = source
        self._reasons = CandidateReasons(service, key)
        self._truth: Truth | None = None
        self.health = WatchHealth(WatchState.DEGRADED, time.monotonic(), "not synced yet")
        self._degraded: str | None = None
        self._known: Mapping[str, Instance] = {}
        self._published: dict[str, Instance] = {}
        self._outside: Mapping[str, Instance] = {}
        self._since: dict[str, float] = {}
        self._models: dict[str, str] = {}
        self._changes = 0

    async def run(self) -> None:
        """Until cancelled. Raises the source's final error; a source out of reach is waited for."""
        try:
            while True:
                try:
                    async with self._service.truth(*self.key) as truth:
                        await self._follow(truth)
                except DiscoveryTimeoutError as error:
                    self._note_health(WatchHealth(WatchState.DEGRADED, self.health.since, str(error)))
        finally:
            await self._reasons.aclose()

    @property
    def has_synced(self) -> bool:
        """Whether the source has answered, since the start."""
        return self._truth is not None

    @property
    def version(self) -> object:
        """It differs once `state` does, and takes less."""
        return self._changes, self.health, self._reasons.version

    def state(self) -> ComponentState:
        """The present state, without I/O."""
        began = time.time() - (time.monotonic() - self.health.since)
        return ComponentState(
            self.key,
            self._source,
            self.health,
            round(began, 1),
            self._known,
            self._published,
            self._reasons.of(self._known, self._published),
            self._models,
            self._since,
            self._reasons.remarks(self._known),
            self._service.is_list,
        )

    def metrics(self) -> Iterable[WatchMetric]:
        return self._metrics.families(self._published, self.health)

    def look(self) -> None:
        """Somebody looks: find out why candidates are no instances, if that is not known."""
        if self._truth is not None:
            self._reasons.look(self._changes)

    async def explained(self, timeout: float) -> None:
        """As `look`; returns when it is known, at the latest after `timeout` seconds."""
        self.look()
        await self._reasons.settled(timeout)

    async def _follow(self, truth: Truth) -> None:
        with truth.subscribe() as subscription:
            subscription.dirty.update(self._published)  # of an earlier try
            self._truth = truth
            while truth.error is None:
                subscription.wake.clear()
                changed, subscription.dirty = subscription.dirty, set()
                await self._take(truth, changed)
                await asyncio.sleep(_TURN)  # what changes meanwhile is taken together
                await subscription.wake.wait()
        raise truth.error

    async def _take(self, truth: Truth, changed: set[str]) -> None:
        at = time.time()
        members, self._known = truth.instances, truth.known
        removed = set()
        why = self._reasons.watched()
        for event in diff(self._published, members, self._known, changed):
            await self._tell(at, event, why.get(event.instance_id))
            if isinstance(event, InstanceRemovedEvent):
                removed.add(event.instance_id)
        self._take_outside(at, removed, why)
        self._since = {id: since for id, since in self._since.items() if id in self._known}
        self._models = {id: model for id, model in self._models.items() if id in self._known}
        self._note_health(truth.health)
        self._changes += 1

    async def _tell(self, at: float, event: InstanceEvent, why: str | None) -> None:
        self.log.instance_event(at, event, why)
        self._metrics.count(event)
        instance = event.instance
        if isinstance(event, InstanceRemovedEvent):
            del self._published[instance.id]
            return
        before = self._published.get(instance.id)
        self._published[instance.id] = instance
        if before is None or before.reachable != instance.reachable:
            self._since[instance.id] = at
        if isinstance(event, InstanceAddedEvent) or event.old.revision != event.new.revision:
            await self._read_model(instance)

    async def _read_model(self, instance: Instance) -> None:
        self._models.pop(instance.id, None)
        try:  # the pushed copy: no request
            name = model_name(await instance.metadata())
        except MetadataUnavailableError:
            return
        if name is not None:
            self._models[instance.id] = name

    def _take_outside(self, at: float, removed: set[str], why: Mapping[str, str]) -> None:
        """The candidates that are no instances; `removed`: those that were."""
        before, known = self._outside, self._known
        outside = {id: one for id, one in known.items() if id not in self._published}
        for id in before:
            if id not in known and id not in removed:
                self.log.candidate_left(at, id, why.get(id))
        for id, one in outside.items():
            if id not in before and id not in removed:
                self.log.candidate_came(at, one)
            if id not in before or before[id].status is not one.status:
                self._since[id] = at
        self._outside = outside

    def _note_health(self, health: WatchHealth) -> None:
        self.health = health
        degraded = (health.reason or "out of reach") if health.state is WatchState.DEGRADED else None
        if degraded is not None and self._degraded is None:
            self.log.add(time.time(), "degraded", detail=degraded)
            log.warning("the source is out of reach: %s", degraded)
        elif degraded is None and self._degraded is not None:
            self.log.add(time.time(), "synced")
            log.warning("the source answers again")
        self._degraded = degraded


class CandidateReasons:
    """Why candidates are no instances: what the open watch knows of each, and over it the findings of the last explanation. Workers and
    the source are asked only while somebody looks, and not too often.
    """

    def __init__(self, service: SourceDiscovery, key: ComponentKey) -> None:
        self._service = service
        self._key = key
        self._explanation: Explanation | None = None
        self._explained_at: object = None
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    def look(self, state: object) -> None:
        """Somebody looks: begin another explanation if one is due. While all is well, none is, unless `state` changed."""
        faultless = self._explanation is not None and is_faultless(self._explanation)
        is_known = faultless and state == self._explained_at
        if self._task is None and not is_known and time.monotonic() >= self._next:
            self._task = asyncio.create_task(self._explain(state), name=f"explain {self._key}")

    async def settled(self, timeout: float) -> None:
        """Returns when no explanation is under way, at the latest after `timeout` seconds."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)

    @property
    def version(self) -> object:
        """It differs once an answer of `of` or `remarks` does."""
        return self._explanation, self.watched()

    def of(self, known: Mapping[str, Instance], published: Mapping[str, Instance]) -> dict[str, str]:
        """By id. An explanation counts for candidates that are still as they were then."""
        reasons = self.watched()
        for found in () if self._explanation is None else self._explanation.candidates:
            now = known.get(found.id)
            as_it_was = now is None if found.instance is None else _same_life(now, found.instance)
            if found.reason is not None and as_it_was and found.is_instance == (found.id in published):
                reasons[found.id] = found.reason
        return reasons

    def remarks(self, known: Mapping[str, Instance]) -> tuple[str, ...]:
        """Sentences about the whole component."""
        if self._explanation is None or known or self._explanation.candidates:
            return ()
        return tuple(self._explanation.remarks())

    def watched(self) -> dict[str, str]:
        """The open watch's knowledge alone, without the explanation."""
        namespace, component = self._key
        return {
            **self._service.without_document(namespace, component),
            **self._service.missing(namespace, component),
        }

    async def _explain(self, state: object) -> None:
        started = time.monotonic()
        try:
            self._explanation = await self._service.explain(*self._key)
            self._explained_at = state
        except AdsumError as error:
            log.info("cannot explain %s: %s", self._key, error)
        finally:
            took = time.monotonic() - started
            self._next = time.monotonic() + max(_EVERY, _SHARE * took)
            self._task = None


def _same_life(now: Instance | None, explained: Instance) -> bool:
    return now is not None and (now.incarnation, now.status) == (explained.incarnation, explained.status)
