"""Opens discovery at the source of workers that flags and configuration name, and keeps the datastore up to date."""

import asyncio
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Never

import discovery
from adsum.tasks import ResourceOwner, background
from discovery.opening import display_url
from discovery.static.endpoints_file import EndpointsFile
from discovery.static.source import StaticSource
from discovery.watch import HealthChanges
from discovery.watch_metrics import WatchMetric, WatchMetrics
from epp.config.picker_config import PickerConfig
from epp.config.settings import Settings
from epp.config.worker_source import WorkerSource
from epp.endpoints.datastore import Datastore
from epp.endpoints.endpoint import Key
from epp.endpoints.endpoint_document import EndpointDefaults
from epp.endpoints.metadata_feed import Consequence, MissingWorkers, follow_discovery

_METADATA_TIMEOUT: Final = 1.0
"""Seconds that the start waits, at most, for the metadata of workers that are already known."""

_LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks at other names while there is no worker, and the longest that one takes."""
_MOST_ELSEWHERE: Final = 5
"""Components that are counted for the hint."""

_WHY: Final[Mapping[discovery.InstanceStatus | None, str]] = {
    discovery.InstanceStatus.READY: "its metadata have not arrived",
    discovery.InstanceStatus.NOT_READY: "it says that it is not ready",
    discovery.InstanceStatus.DRAINING: "it drains",
    None: "its record is not valid",
}

log = logging.getLogger(__name__)


class WorkerDiscovery(ResourceOwner):
    """An async context manager; once entered, the workers that are known are endpoints of `datastore`. A `ConfiguredPart`.

    Entering raises AdsumError and OSError.
    """

    def __init__(self, source: WorkerSource, settings: Settings, datastore: Datastore) -> None:
        self.source = source
        self._settings = settings
        self._key = settings.namespace, settings.component
        self._datastore = datastore
        self._found: discovery.SourceDiscovery | None = None
        self._watch: discovery.InstanceEventStream | None = None
        self._metrics: WatchMetrics | None = None
        self._elsewhere: str | None = None
        # bounded: by what is left of them at the source
        self._gone: set[str] = set()
        self.on_event: list[Callable[[discovery.InstanceEvent], None]] = [self._note_gone]
        """Called with each worker that comes, changes or goes."""

    def prepare(self, config: PickerConfig) -> Callable[[], None]:
        return partial(self._datastore.reread, endpoint_defaults(config, self._settings))

    def describe(self) -> dict[str, Any]:
        """Return a part of /status: where the workers are looked for, and whether that source is in reach."""
        health = None if self._watch is None else self._watch.health
        return {
            "workers": self._where,
            "watch": {"state": health.state, "reason": health.reason} if health is not None else None,
            **({"elsewhere": self._elsewhere} if self._elsewhere and not self._datastore.endpoints else {}),
        }

    def metrics(self) -> Iterable[WatchMetric]:
        """For the metrics page; nothing until the workers are watched."""
        if self._watch is None or self._metrics is None:
            return ()
        return self._metrics.families(self._watch.instances, self._watch.health)

    def absent(self) -> dict[str, str]:
        """The workers that are known and get no requests, and why, by id. Without I/O."""
        if self._found is None:
            return {}
        statuses = self._found.excluded(*self._key)
        reasons = {name: _WHY.get(status, "it is not ready") for name, status in statuses.items()}
        return reasons | self._found.missing(*self._key)

    async def _open(self) -> None:
        known = [one.key for one in self._datastore.endpoints]  # another process followed them until now
        self._stack.callback(self._forget_watch)
        found = await self._stack.enter_async_context(_open_discovery(self.source))
        self._found = found
        watch = await self._stack.enter_async_context(found.watch(*self._key, metadata=True))
        metrics = WatchMetrics("/".join(self._key), lambda: found.excluded(*self._key))
        self._watch, self._metrics = watch, metrics
        self._start(self._follow(_counted(watch, metrics)))
        members = await found.list_instances(*self._key)
        if not members:
            self._warn_of_no_worker()
            await self._stack.enter_async_context(background(self._look_elsewhere(found)))
        self._remove_gone(known, [*members, *watch.instances.values()])
        await self._wait_for_metadata({member.id for member in members}, watch)
        self._start(HealthChanges(log.warning).follow(lambda: watch.health))
        self._start(MissingWorkers(self._missing).run())
        self._start(MissingWorkers(self._without_document, Consequence.NO_DOCUMENT).run())

    def _forget_watch(self) -> None:
        self._found = self._watch = None

    def _remove_gone(self, known: Iterable[Key], members: Iterable[discovery.Instance]) -> None:
        there = {(one.id, one.incarnation) for one in members}
        for key in known:
            gone = self._datastore.instance(key)
            if gone is not None and key not in there:
                event = discovery.InstanceRemovedEvent(gone, "deleted")
                for told in self.on_event:
                    told(event)
                self._datastore.apply(event)

    def _note_gone(self, event: discovery.InstanceEvent) -> None:
        if isinstance(event, discovery.InstanceRemovedEvent) and event.reason == "deleted":
            self._gone.add(event.instance_id)
        else:
            self._gone.discard(event.instance_id)

    def _missing(self) -> dict[str, str]:
        """Why workers are missing, by id, but not what is left of those that are gone: the log has told it."""
        missing = {} if self._found is None else self._found.missing(*self._key)
        self._gone.intersection_update(missing)
        return {name: reason for name, reason in missing.items() if name not in self._gone}

    def _without_document(self) -> dict[str, str]:
        """Why workers have no document, by id, but not of those whose death the log has told."""
        reasons = {} if self._found is None else self._found.without_document(*self._key)
        if not reasons:
            return reasons
        dead = {one.id for one in self._datastore.endpoints if self._datastore.seems_dead(one.key)}
        return {name: reason for name, reason in reasons.items() if name not in dead}

    def _warn_of_no_worker(self) -> None:
        namespace, component = self._key
        url = self.source.url
        where = f" --discovery {shlex.quote(url)}" if url else ""
        log.warning(
            "no worker of %s/%s is ready at %s yet; to list all candidates: adsum discovery explain %s %s%s",
            namespace, component, self._where, namespace, component, where,
        )  # fmt: skip

    async def _follow(self, events: AsyncIterator[discovery.InstanceEvent]) -> Never:
        await follow_discovery(events, self._datastore, self.on_event)
        raise RuntimeError("the watch of the workers ended")

    async def _look_elsewhere(self, found: discovery.SourceDiscovery) -> None:
        """Until there is a worker: says which flags would find those that are registered under other names."""
        while not self._datastore.endpoints:
            hint = await self._hint(found)
            if hint is not None and hint != self._elsewhere:
                log.warning("%s", hint)
            self._elsewhere = hint
            await asyncio.sleep(_LOOK_INTERVAL)
        self._elsewhere = None

    async def _hint(self, found: discovery.SourceDiscovery) -> str | None:
        if found.is_list:
            return None  # it has the same workers under every name
        try:
            counts, _ = await found.survey(_MOST_ELSEWHERE, timeout=_LOOK_INTERVAL)
        except (discovery.AdsumError, OSError):
            return None  # the watch says what is wrong with the source
        there = [
            f"{ready} in {'/'.join(key)}: --namespace {key.namespace} --component {key.component}"
            for key, ready, _ in counts
            if ready and key != self._key
        ]
        return f"no worker in {'/'.join(self._key)}, but {'; '.join(there)}" if there else None

    async def _wait_for_metadata(self, members: set[str], watch: discovery.InstanceEventStream) -> None:
        """Wait for the endpoints of `members`, so that a picker that is ready does not answer 503. A process that takes over
        has them already, and waits for the watch: what that does not have yet would be called missing.
        """

        def there() -> bool:
            endpoints = {endpoint.id for endpoint in self._datastore.endpoints}
            return members <= endpoints & {one.id for one in watch.instances.values()}

        changed = asyncio.Event()
        self._datastore.on_change.append(changed.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_METADATA_TIMEOUT):
                while not there():
                    await changed.wait()
                    changed.clear()
        self._datastore.on_change.remove(changed.set)

    @property
    def _where(self) -> str:
        file = self.source.file
        return file.path if file is not None else display_url(self.source.url)


def endpoint_defaults(config: PickerConfig, settings: Settings) -> EndpointDefaults:
    """The defaults for workers that do not say it."""
    return replace(config.defaults, serving_port_name=settings.serving_port_name)


async def _counted(
    events: discovery.InstanceEventStream, metrics: WatchMetrics
) -> AsyncIterator[discovery.InstanceEvent]:
    async for event in events:
        metrics.count(event)
        yield event


def _open_discovery(source: WorkerSource) -> discovery.SourceDiscovery:
    if source.file is None:
        return discovery.open(source.url)
    path = Path(source.file.path)
    return discovery.SourceDiscovery(StaticSource(EndpointsFile(path), watched=source.file.watch_file))
