"""Shares one run of a source, and one set of held GETs, between all watches of the same component."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from adsum.tasks import cancel_and_wait
from discovery.copy_on_write import FrozenDict
from discovery.errors import DiscoveryTimeoutError, MetadataUnavailableError
from discovery.explanation import describe_failure
from discovery.instance import Instance, InstanceStatus, MetadataReader
from discovery.metadata.client import MetadataClient
from discovery.metadata.document import read_metadata
from discovery.metadata.follower import DocumentFollower, FollowRules
from discovery.metadata.known_keys import ignored_keys
from discovery.source import Candidate, ComponentKey, PersistentSnapshot, Snapshot, Source, needs_documents
from discovery.watch import Truth


class SharedWatch:
    """Owns the task that runs the source, and the task that follows documents while there are watchers."""

    def __init__(self, source: Source, key: ComponentKey, client: MetadataClient) -> None:
        self.membership = Truth()
        self.users = 0
        self._snapshot = Snapshot(())
        self._members: Mapping[str, Instance] = FrozenDict()
        self._key = key
        self._client = client
        self._source = source
        self._source_task = asyncio.create_task(self._run_source(), name=f"source {key}")
        self._follower: DocumentFollower | None = None
        self._follower_task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._document_watchers = 0

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self._snapshot.candidates

    @property
    def reader(self) -> MetadataReader:
        """Implements `Report`: the client that reads workers' metadata."""
        return self._client

    def __call__(self, snapshot: Snapshot) -> None:
        """Implements `Report`: replace the set."""
        self._snapshot = snapshot
        instances = snapshot.instances
        if not isinstance(snapshot, PersistentSnapshot):
            instances = {i: self._with_reader(instance) for i, instance in instances.items()}
        self._members = instances
        self.membership.replace(self._mark_silent_members(), snapshot.known)

    def degraded(self, reason: str) -> None:
        """Of `Report`: the source is out of reach."""
        self.membership.degrade(reason)

    async def aclose(self) -> None:
        await cancel_and_wait(self._source_task)

    async def fail(self, error: Exception) -> None:
        """End the source's run; every watch and every waiter raises `error`."""
        self.membership.fail(error)
        if self._follower is not None:
            self._follower.truth.fail(error)
        await cancel_and_wait(
            *(task for task in (self._source_task, self._follower_task) if task is not None)
        )

    async def wait_synced(self, timeout: float) -> None:
        """Wait for the first snapshot. Raises the source's error, or `DiscoveryTimeoutError` with its last problem."""
        truth = self.membership
        try:
            async with asyncio.timeout(timeout):
                with truth.subscribe() as subscription:
                    while not truth.synced and truth.error is None:
                        await subscription.wake.wait()
                        subscription.wake.clear()
        except TimeoutError as error:
            reason = truth.health.reason
            raise DiscoveryTimeoutError(f"{self._key} did not sync within {timeout:g} s: {reason}") from error
        if truth.error is not None:
            raise truth.error

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Truth]:
        """The membership, in which silent workers are unreachable."""
        if not self._client.silence.in_every_watch:
            yield self.membership
            return
        async with self._use_follower():
            yield self.membership

    @asynccontextmanager
    async def watch_documents(self) -> AsyncIterator[Truth]:
        """The membership with metadata."""
        async with self._use_follower() as follower:
            follower.include_documents()
            self._document_watchers += 1
            try:
                yield follower.truth
            finally:
                self._document_watchers -= 1

    @asynccontextmanager
    async def _use_follower(self) -> AsyncIterator[DocumentFollower]:
        """The one follower of all watchers; the last of them ends it and its held GETs."""
        self._watchers += 1
        if self._follower is None:
            suspect = partial(self._source.suspect, self._key)
            rules = FollowRules(needs_documents(self._source), suspect, self._publish_silence)
            self._follower = DocumentFollower(self.membership, self._client, rules)
            self._follower_task = asyncio.create_task(self._follower.run(), name=f"documents {self._key}")
        try:
            yield self._follower
        finally:
            self._watchers -= 1
            if self._watchers == 0 and self._follower_task is not None:
                task, self._follower_task, self._follower = self._follower_task, None, None
                await cancel_and_wait(task)
                self._publish_silence()

    def missing(self) -> dict[str, str]:
        """As `SourceDiscovery.missing`: from what is known, without I/O."""
        reasons = {c.id: c.reason for c in self._snapshot.others if c.reason is not None}
        if self._follower is not None and self._document_watchers:
            reasons |= self._follower.problems()
        published = self._published
        return {i: reason for i, reason in reasons.items() if i not in published}

    def excluded(self) -> dict[str, InstanceStatus | None]:
        """As `SourceDiscovery.excluded`: from what is known, without I/O."""
        found: dict[str, InstanceStatus | None] = dict.fromkeys(c.id for c in self._snapshot.others)
        found |= {i: instance.status for i, instance in self._snapshot.known.items()}
        published = self._published
        return {i: status for i, status in found.items() if i not in published}

    @property
    def _published(self) -> Mapping[str, Instance]:
        """What watches have been told."""
        if self._follower is not None and self._document_watchers:
            return self._follower.truth.instances
        return self.membership.instances

    def without_document(self) -> dict[str, str]:
        """As `SourceDiscovery.without_document`: from what is known, without I/O."""
        return {} if self._follower is None else dict(self._follower.without_document())

    async def metadata_problem(self, instance: Instance) -> str | None:
        """Why this member's metadata is unavailable, or which of its keys are ignored: from the follower if it knows, else
        by a GET."""
        unavailable = "its metadata is unavailable: "
        try:
            if self._follower is not None and self._follower.follows(instance.id):
                if (problem := self._follower.problem(instance.id)) is not None:
                    return unavailable + problem
                document = await self._follower.read(instance)
            else:
                document = read_metadata(instance, (await self._client.fetch(instance)).document)
        except MetadataUnavailableError as error:
            return unavailable + describe_failure(error, self._client.scheme)
        ignored = "; ".join(ignored_keys(document))
        return f"in its metadata {ignored}" if ignored else None

    async def not_ready_reason(self, instance: Instance) -> str:
        """Why this candidate is not ready: its own reason in `/health`, or that nothing answers at its address."""
        silent = f"its status is {instance.status}, and nothing answers at {instance.authority}"
        try:
            reason = await self._client.read_health(instance)
        except MetadataUnavailableError as error:
            return f"{silent}: {error.reason}"
        return f"its status is {instance.status}; " + (reason or 'it has not called set_ready("ready")')

    async def _run_source(self) -> None:
        try:
            await self._source.run(self._key, self)
        except Exception as error:  # noqa: BLE001 -- whatever ends a source must reach its readers, not a log
            self.membership.fail(error)
        else:
            self.membership.fail(RuntimeError(f"the source of {self._key} ended, which it never should"))

    def _publish_silence(self) -> None:
        if self.membership.error is None:
            self.membership.replace(self._mark_silent_members(), self._snapshot.known, self.membership.health)

    def _mark_silent_members(self) -> Mapping[str, Instance]:
        """The members, with `reachable=False` for silent ones."""
        silent = {} if self._follower is None else self._follower.silent
        marked = {
            i: replace(member, reachable=False)
            for i, incarnation in silent.items()
            if (member := self._members.get(i)) is not None and member.incarnation == incarnation
        }
        if not marked:
            return self._members
        if isinstance(self._members, FrozenDict):
            return self._members.updated(marked)
        return {**self._members, **marked}

    def _with_reader(self, instance: Instance) -> Instance:
        # the same object for an unchanged instance: comparing sets by identity is fast
        before = self._members.get(instance.id)
        return before if before is not None and before == instance else replace(instance, reader=self._client)
