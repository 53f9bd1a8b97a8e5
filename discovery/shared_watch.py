"""Shares one run of a source, and one set of held GETs, between all watches of the same component."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from adsum.tasks import cancel_and_wait
from discovery.errors import DiscoveryTimeoutError
from discovery.instance import Instance
from discovery.membership import MembershipReport
from discovery.metadata.client import MetadataClient
from discovery.metadata.follower import DocumentFollower
from discovery.source import ComponentKey, Source
from discovery.watch import Truth


class SharedWatch:
    """Owns the task that runs the source, and the task that follows documents while there are watchers."""

    def __init__(
        self, source: Source, key: ComponentKey, client: MetadataClient, *, needs_documents: bool
    ) -> None:
        self.client = client
        self.report = MembershipReport(client)
        self.follower: DocumentFollower | None = None
        self.users = 0
        self._key = key
        self._source = source
        self._needs_documents = needs_documents
        self._source_task = asyncio.create_task(self._run_source(), name=f"source {key}")
        self._follower_task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._document_watchers = 0

    @property
    def membership(self) -> Truth:
        return self.report.truth

    @property
    def published(self) -> Mapping[str, Instance]:
        """The instances that open watches have: if one of them is with metadata, those whose documents have arrived."""
        follower = self.document_follower
        return self.membership.instances if follower is None else follower.truth.instances

    @property
    def document_follower(self) -> DocumentFollower | None:
        """None if no watch is with metadata."""
        return self.follower if self._document_watchers else None

    async def aclose(self) -> None:
        await cancel_and_wait(self._source_task)

    async def fail(self, error: Exception) -> None:
        """End the source's run; every watch and every waiter raises `error`."""
        self.membership.fail(error)
        if self.follower is not None:
            self.follower.truth.fail(error)
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
        if not self.client.silence.in_every_watch:
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
        if self.follower is None:
            suspect = partial(self._source.suspect, self._key)
            self.follower = DocumentFollower(
                self.report, self.client, suspect, needs_documents=self._needs_documents
            )
            self._follower_task = asyncio.create_task(self.follower.run(), name=f"documents {self._key}")
        try:
            yield self.follower
        finally:
            self._watchers -= 1
            if self._watchers == 0 and self._follower_task is not None:
                task, self._follower_task, self.follower = self._follower_task, None, None
                await cancel_and_wait(task)

    async def _run_source(self) -> None:
        try:
            await self._source.run(self._key, self.report)
        except Exception as error:  # noqa: BLE001 -- whatever ends a source must reach its readers, not a log
            self.membership.fail(error)
        else:
            self.membership.fail(RuntimeError(f"the source of {self._key} ended, which it never should"))
