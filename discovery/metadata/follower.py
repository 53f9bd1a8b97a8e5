"""Follows the metadata and the reachability of every instance of a component, by one held GET each."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from discovery.copy_on_write import CopyOnWriteDict
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import Instance
from discovery.membership import MembershipReport
from discovery.metadata.client import MetadataAnswer, MetadataClient, describe_failure
from discovery.metadata.document import NO_DOCUMENT, MetadataDocument, read_metadata
from discovery.metadata.schedule import FetchSchedule
from discovery.metadata.silence import SilenceMonitor
from discovery.watch import Subscription, Truth

log = logging.getLogger(__name__)

_DOCUMENT_GRACE: Final = 0.25
"""Seconds for the document of a listed worker that accepted a connection; then it is published without one."""
_MONITORED_LIMIT: Final = 2048
"""Workers that a watch without metadata sends GETs to, at most: its cost must not grow with the cluster."""
_BATCH: Final = 50
"""New instances started in one iteration of the loop: thousands at once would block it."""
_FULL_RATE_WORKERS: Final = 4096
"""Beyond so many workers the delay between polls grows, so that the rate of all polls together does not."""


class DocumentFollower:
    """`truth`: the members whose documents have arrived, and the listed members that accept connections. `suspect` is called
    with the id of an instance that just stopped answering; those that stay silent are marked in `membership`.

    Reachability is a hint: a reset or silent GET, or a status other than ready, turns it false; the next answer clears
    it. Only the source removes: a network fault between this reader and a worker says nothing about the worker.
    """

    def __init__(
        self,
        membership: MembershipReport,
        client: MetadataClient,
        suspect: Callable[[str], None],
        *,
        needs_documents: bool,
    ) -> None:
        self.truth = Truth()
        self._report = membership
        self._membership = membership.truth
        self._client = client
        self._suspect = suspect
        self._needs_documents = needs_documents
        self._monitors: dict[str, SilenceMonitor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._logged: set[str] = set()
        self._published: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._changed: set[str] = set()
        self._publish_scheduled = False
        self._ended = False
        self._includes_documents = False
        self._subscription = Subscription(())

    async def run(self) -> None:
        """Runs until cancelled or until the source fails; owns one task per instance."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._follow_membership(tasks)
        except BaseExceptionGroup as group:
            self.truth.fail(group.exceptions[0])
        finally:
            self._ended = True
            self._monitors.clear()
            self._report.clear_silence()

    async def read(self, instance: Instance) -> dict[str, Any]:
        """The pushed copy, without I/O; after the watch has ended, a GET.

        Raises `MetadataUnavailableError`, also for an incarnation that is no longer a member.
        """
        if self._ended:
            return await self._client.read(instance)
        monitor = self._monitors.get(instance.id)
        if monitor and monitor.document and monitor.instance.incarnation == instance.incarnation:
            return read_metadata(instance, monitor.document)
        raise MetadataUnavailableError(instance.id, instance.authority, "this instance is no longer there")

    def problem(self, instance_id: str) -> str | None:
        """Why this member is unpublished or unreachable."""
        monitor = self._monitors.get(instance_id)
        return None if monitor is None else monitor.problem

    def problems(self) -> Mapping[str, str]:
        """Why members are unpublished or unreachable, by instance id."""
        return {key: f.problem for key, f in self._monitors.items() if f.problem is not None}

    def without_document(self) -> Mapping[str, str]:
        """Why listed members are published without a document, by instance id; without those that answered 404, 405
        or 501."""
        listed = (f for f in self._monitors.values() if f.document is NO_DOCUMENT)
        return {f.instance.id: f.problem for f in listed if f.problem is not None}

    def include_documents(self) -> None:
        """From now on follow all members and publish to `truth`; before, only reachability is followed, of so many members
        at most as `_MONITORED_LIMIT`."""
        if not self._includes_documents:
            self._includes_documents = True
            self._subscription.dirty.update(self._membership.instances)
            self._subscription.wake.set()
        self.publish()

    def follows(self, instance_id: str) -> bool:
        return instance_id in self._monitors

    async def _follow_membership(self, tasks: asyncio.TaskGroup) -> None:
        with self._membership.subscribe() as subscription:
            self._subscription = subscription
            while self._membership.error is None:
                subscription.wake.clear()
                changed, subscription.dirty = subscription.dirty, set()
                await self._apply_changes(tasks, changed)
                await subscription.wake.wait()
        raise self._membership.error

    async def _apply_changes(self, tasks: asyncio.TaskGroup, changed: Collection[str]) -> None:
        """Stop following removed members first; start following new ones in batches."""
        members = self._membership.instances
        for instance_id in (i for i in changed if i not in members):
            self._monitors.pop(instance_id, None)
            self._stop_following(instance_id)
            self._unpublish(instance_id)
        for number, instance_id in enumerate(changed):
            instance = self._membership.instances.get(instance_id)
            if instance is not None and (self._includes_documents or self._is_monitored(instance_id)):
                self._start_following(tasks, instance)
            if number % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
        self.publish()

    def _is_monitored(self, instance_id: str) -> bool:
        return instance_id in self._monitors or len(self._monitors) < _MONITORED_LIMIT

    def _start_following(self, tasks: asyncio.TaskGroup, instance: Instance) -> None:
        monitor = self._monitors.get(instance.id)
        if monitor is not None and monitor.instance is instance:
            return
        poll = self._client.silence.poll
        if monitor is None or monitor.instance.incarnation != instance.incarnation:
            self._unpublish(instance.id)
            monitor = SilenceMonitor(instance, self._needs_documents)
            self._monitors[instance.id] = monitor
        elif (monitor.instance.address, monitor.instance.port) == (instance.address, instance.port):
            monitor.instance = instance
            self._set_published(monitor)
            return
        self._stop_following(instance.id)
        monitor.instance, monitor.schedule = instance, FetchSchedule(poll)
        self._set_published(monitor)
        self._tasks[instance.id] = tasks.create_task(self._follow(monitor), name=f"follow {instance.id}")

    def _stop_following(self, instance_id: str) -> None:
        task = self._tasks.pop(instance_id, None)
        if task is not None:
            task.cancel()
        self._logged.discard(instance_id)
        self._report.clear_silence((instance_id,))

    async def _follow(self, monitor: SilenceMonitor) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                delay = await self._refresh(monitor)
            except Exception as error:  # noqa: BLE001 -- one worker's fault must not end the watch of all others
                delay = self._crashed(monitor, error)
            await asyncio.sleep(max(delay, monitor.schedule.throttle(now())))

    async def _refresh(self, monitor: SilenceMonitor) -> float:
        """One GET and what follows from its answer; returns the seconds until the next."""
        try:
            document, delay = await self._hold_or_fetch(monitor)
        except MetadataUnavailableError as error:
            return self._failed(monitor, error)
        self._answered(monitor, document)
        return delay

    async def _hold_or_fetch(self, monitor: SilenceMonitor) -> tuple[MetadataDocument, float]:
        """The document, and the seconds until the next GET: 0 if that can be held."""
        now, schedule, known = asyncio.get_running_loop().time, monitor.schedule, monitor.document
        may_hold = known is not None and known.etag is not None and schedule.may_hold(now())
        if may_hold and known is not None and (document := await self._hold(monitor, known)) is not None:
            return document, schedule.next_hold(now())
        document = (await self._fetch(monitor)).document
        schedule.answered()
        if not may_hold and document.etag is not None and schedule.may_hold(now()):
            return document, 0.0
        return document, schedule.next_poll() * max(1.0, len(self._monitors) / _FULL_RATE_WORKERS)

    async def _fetch(self, monitor: SilenceMonitor) -> MetadataAnswer:
        """One GET that is not held."""
        is_retry = monitor.schedule.failures > 0
        # `SilenceTimings` promises a bound: an answering worker that is polled has no more time than `margin`
        prompt = monitor.has_answered and not is_retry and self._client.silence.in_every_watch
        timeout = min(self._client.silence.margin, self._client.timeout) if prompt else None
        waits = not monitor.needs_document and not monitor.is_published
        connected = partial(self._connected, monitor) if waits else None
        return await self._client.fetch(
            monitor.instance, monitor.document, retry=is_retry, timeout=timeout, connected=connected
        )

    async def _hold(self, monitor: SilenceMonitor, known: MetadataDocument) -> MetadataDocument | None:
        """The answer of a held GET; None if none may be held. Tells the schedule whether the worker held it."""
        now, schedule = asyncio.get_running_loop().time, monitor.schedule
        started = now()
        try:
            answer = await self._client.hold(monitor.instance, known)
        except MetadataUnavailableError:
            schedule.hold_failed(now())
            raise
        if answer is None:
            return None
        # a server or proxy that claims to hold but answers at once would be asked in a loop
        unchanged = answer.document == known and now() - started < self._client.silence.wait / 2
        if not answer.held:
            schedule.hold_refused(now())
        elif unchanged or answer.document.etag is None:
            schedule.hold_failed(now())
        else:
            schedule.held()
        return answer.document

    def _answered(self, monitor: SilenceMonitor, document: MetadataDocument) -> None:
        self._logged.discard(monitor.instance.id)
        if monitor.answered(document):
            self._publish_change(monitor)
        self._note_silence(monitor, None)

    def _failed(self, monitor: SilenceMonitor, error: MetadataUnavailableError) -> float:
        if isinstance(error, WorkerUnreachableError) and monitor.schedule.failures == 0:
            self._suspect(monitor.instance.id)
        if monitor.failed(error, describe_failure(error, self._client.scheme)):
            self._publish_change(monitor)
        self._note_silence(monitor, monitor.silence_delay(error))
        return monitor.retry_delay(error)

    def _connected(self, monitor: SilenceMonitor) -> None:
        asyncio.get_running_loop().call_later(_DOCUMENT_GRACE, self._publish_without_document, monitor)

    def _publish_without_document(self, monitor: SilenceMonitor) -> None:
        if (
            self._monitors.get(monitor.instance.id) is monitor
            and not monitor.is_published
            and monitor.accepted_connection()
        ):
            self._publish_change(monitor)

    def _note_silence(self, monitor: SilenceMonitor, delay: float | None) -> None:
        if not monitor.silent:
            self._report.clear_silence((monitor.instance.id,))
        if delay is not None:
            asyncio.get_running_loop().call_later(delay, self._mark_silent, monitor)

    def _mark_silent(self, monitor: SilenceMonitor) -> None:
        """Unless it was replaced, removed or heard again since this was scheduled."""
        if self._monitors.get(monitor.instance.id) is monitor and monitor.silent:
            self._report.mark_silent(monitor.instance)

    def _crashed(self, monitor: SilenceMonitor, error: Exception) -> float:
        """An unexpected error; logged once until this worker answers again."""
        monitor.problem = f"{type(error).__name__}: {error}"
        if monitor.instance.id not in self._logged:
            self._logged.add(monitor.instance.id)
            log.error(
                "cannot follow the metadata of %s: unexpected error", monitor.instance.id, exc_info=error
            )
        return monitor.schedule.failed(unreachable=False)

    def _set_published(self, monitor: SilenceMonitor) -> None:
        if (instance := monitor.published_instance(self)) is not None:
            self._published[instance.id] = instance
            self._changed.add(instance.id)

    def _unpublish(self, instance_id: str) -> None:
        if self._published.pop(instance_id, None) is not None:
            self._changed.add(instance_id)

    def _publish_change(self, monitor: SilenceMonitor) -> None:
        self._set_published(monitor)
        if not self._publish_scheduled:
            self._publish_scheduled = True
            asyncio.get_running_loop().call_soon(self.publish)

    def publish(self) -> None:
        """Replace `truth`. Also before the first document: readers then see an empty set with the source's health."""
        self._publish_scheduled = False
        if self._includes_documents and self._membership.error is None and self._membership.synced:
            changed, self._changed = self._changed, set()
            self.truth.replace(
                self._published.frozen(), self._membership.known, changed, self._membership.health
            )
