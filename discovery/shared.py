"""One run of a source for one key, and at most one set of held GETs, shared by all who watch that key."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from discovery.copy_on_write import FrozenDict
from discovery.errors import DiscoveryTimeoutError, MetadataUnavailableError
from discovery.explanation import in_full
from discovery.instance import Instance, MetadataReader
from discovery.metadata.client import MetadataClient
from discovery.metadata.follower import DocumentFollower, FollowRules
from discovery.source import Candidate, ComponentKey, PersistentSnapshot, Snapshot, Source, needs_documents
from discovery.watch import Truth
from runtime.tasks import cancel_and_wait


class SharedWatch:
    """Owns the task that runs the source, and the task that follows documents while somebody wants them."""

    def __init__(self, source: Source, key: ComponentKey, client: MetadataClient) -> None:
        self.membership = Truth()
        self.users = 0
        self._heard = Snapshot(())
        self._members: Mapping[str, Instance] = FrozenDict()
        self._key = key
        self._client = client
        self._source = source
        self._run = asyncio.create_task(self._run_source(), name=f"source {key}")
        self._follower: DocumentFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._followers = 0
        self._wanted = 0

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self._heard.candidates

    @property
    def reader(self) -> MetadataReader:
        """Report: who reads the documents."""
        return self._client

    def __call__(self, snapshot: Snapshot) -> None:
        """Report: the set as the source knows it now."""
        self._heard = snapshot
        instances = snapshot.instances
        if not isinstance(snapshot, PersistentSnapshot):
            instances = {i: self._readable(instance) for i, instance in instances.items()}
        self._members = instances
        self.membership.replace(self._with_silence(), snapshot.known)

    def degraded(self, reason: str) -> None:
        """Report: contact to the source is lost."""
        self.membership.degrade(reason)

    async def aclose(self) -> None:
        await cancel_and_wait(self._run)

    async def fail(self, error: Exception) -> None:
        """Stop for everybody: whoever waits or reads here gets `error`."""
        self.membership.fail(error)
        if self._follower is not None:
            self._follower.truth.fail(error)
        await cancel_and_wait(*(task for task in (self._run, self._following) if task is not None))

    async def synced(self, timeout: float) -> None:
        """Wait for the first set; raises what the source raised, or `DiscoveryTimeoutError` with what was heard."""
        truth = self.membership
        try:
            async with asyncio.timeout(timeout):
                with truth.subscribed() as ear:
                    while not truth.synced and truth.error is None:
                        await ear.wake.wait()
                        ear.wake.clear()
        except TimeoutError as error:
            heard = truth.health.reason
            raise DiscoveryTimeoutError(f"{self._key} did not sync within {timeout:g} s: {heard}") from error
        if truth.error is not None:
            raise truth.error

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Truth]:
        """The membership; whoever falls silent is unreachable in it for as long as somebody watches."""
        if not self._client.silence.in_every_watch:
            yield self.membership
            return
        async with self._following_all():
            yield self.membership

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[Truth]:
        """The truth with documents."""
        async with self._following_all() as follower:
            follower.want_documents()
            self._wanted += 1
            try:
                yield follower.truth
            finally:
                self._wanted -= 1

    @asynccontextmanager
    async def _following_all(self) -> AsyncIterator[DocumentFollower]:
        """One for all who watch: the held GETs end with the last of them."""
        self._followers += 1
        if self._follower is None:
            suspect = partial(self._source.suspect, self._key)
            rules = FollowRules(needs_documents(self._source), suspect, self._tell_silence)
            self._follower = DocumentFollower(self.membership, self._client, rules)
            self._following = asyncio.create_task(self._follower.run(), name=f"documents {self._key}")
        try:
            yield self._follower
        finally:
            self._followers -= 1
            if self._followers == 0 and self._following is not None:
                task, self._following, self._follower = self._following, None, None
                await cancel_and_wait(task)
                self._tell_silence()

    def missing(self) -> dict[str, str]:
        """Why candidates are not told to those who want documents, by id. Asks nobody."""
        reasons = {c.id: c.reason for c in self._heard.others if c.reason is not None}
        told = self.membership.instances
        if self._follower is not None and self._wanted:
            told = self._follower.truth.instances
            reasons |= self._follower.problems()
        return {i: reason for i, reason in reasons.items() if i not in told}

    def without_document(self) -> dict[str, str]:
        """Why some are told to those who want documents without any, by id. Asks nobody."""
        return {} if self._follower is None else dict(self._follower.without_document())

    async def problem(self, instance: Instance) -> str | None:
        """Why this member's metadata cannot be had, from the follower if there is one, else by asking the worker."""
        if self._follower is not None and self._follower.follows(instance.id):
            return self._follower.problems().get(instance.id)
        try:
            await self._client.fetch(instance)
        except MetadataUnavailableError as error:
            return in_full(error, self._client.scheme)
        return None

    async def standing(self, instance: Instance) -> str:
        """Why this candidate, which is not ready, is not: what it says itself, or that nothing answers there."""
        silent = f"its status is {instance.status}, and nothing answers at {instance.authority}"
        try:
            reason = await self._client.read_health(instance)
        except MetadataUnavailableError as error:
            return f"{silent}: {error.reason}"
        return f"its status is {instance.status}; " + (reason or 'it has not said set_ready("ready")')

    async def _run_source(self) -> None:
        try:
            await self._source.run(self._key, self)
        except Exception as error:  # noqa: BLE001 -- whatever ends a source must reach its readers, not a log
            self.membership.fail(error)
        else:
            self.membership.fail(RuntimeError(f"the source of {self._key} ended, which it never should"))

    def _tell_silence(self) -> None:
        if self.membership.error is None:
            self.membership.replace(self._with_silence(), self._heard.known, self.membership.health)

    def _with_silence(self) -> Mapping[str, Instance]:
        """The members, those that fell silent marked."""
        silent = {} if self._follower is None else self._follower.silent
        marked = {
            i: replace(member, reachable=False)
            for i, incarnation in silent.items()
            if (member := self._members.get(i)) is not None and member.incarnation == incarnation
        }
        if not marked:
            return self._members
        if isinstance(self._members, FrozenDict):
            return self._members.overlaid(marked)
        return {**self._members, **marked}

    def _readable(self, instance: Instance) -> Instance:
        before = self._members.get(instance.id)
        return before if before is not None and before == instance else replace(instance, reader=self._client)
