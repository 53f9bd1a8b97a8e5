"""Pushed metadata: one held GET per instance, and the truth that follows from membership and documents together."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from discovery.document import Document
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import Instance
from discovery.metadata import MetadataClient
from discovery.watch import Truth

_POLL: Final = 2.0
"""Seconds between two GETs of a worker that does not hold them."""
_FIRST_RETRY: Final = 0.05
_LAST_RETRY: Final = 5.0


@dataclass(slots=True, eq=False)
class Followed:
    """One instance under observation: its last good document, or why there is none; `seen` is what readers are told."""

    instance: Instance
    document: Document | None = None
    reachable: bool = True
    holds: bool | None = None
    problem: str | None = "its metadata was not fetched yet"
    seen: Instance | None = None
    task: asyncio.Task[None] | None = None


class DocumentFollower:
    """Turns the truth about membership into the truth about membership and documents.

    An instance is in it once its document is. Reachability is a hint: a GET that is reset or goes silent, or a worker
    that does not call itself ready, turns it false; the next answer clears it.
    """

    def __init__(self, membership: Truth, client: MetadataClient, suspect: Callable[[str], None]) -> None:
        self.truth = Truth()
        self._membership = membership
        self._client = client
        self._suspect = suspect
        self._followed: dict[str, Followed] = {}
        self._publishing = False
        self._ended = False

    async def run(self) -> None:
        """Follow the membership until cancelled, or until its source fails; owns one task per instance."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._follow_membership(tasks)
        except BaseExceptionGroup as group:
            self.truth.fail(group.exceptions[0])
        finally:
            self._ended = True
            self._followed.clear()

    async def read(self, instance: Instance) -> dict[str, Any]:
        """The pushed copy, at once; when nothing is followed any more, the worker is asked.

        Raises `MetadataUnavailableError`, at once too for an incarnation that has gone since it was told.
        """
        if self._ended:
            return await self._client.read(instance)
        followed = self._followed.get(instance.id)
        if followed and followed.document and followed.instance.incarnation == instance.incarnation:
            return followed.document.metadata()
        raise MetadataUnavailableError(instance.id, instance.authority, "this instance is not there any more")

    def problems(self) -> Mapping[str, str]:
        """Why members are not told yet, or are unreachable, by instance id."""
        return {key: f.problem for key, f in self._followed.items() if f.problem is not None}

    async def _follow_membership(self, tasks: asyncio.TaskGroup) -> None:
        with self._membership.subscribed() as ear:
            while self._membership.error is None:
                ear.wake.clear()
                self._adopt(tasks)
                await ear.wake.wait()
        raise self._membership.error

    def _adopt(self, tasks: asyncio.TaskGroup) -> None:
        members = self._membership.instances
        for instance_id in [i for i in self._followed if i not in members]:
            self._stop(self._followed.pop(instance_id))
        for instance_id, instance in members.items():
            followed = self._followed.get(instance_id)
            if followed is not None and followed.instance is instance:
                continue
            if followed is None or followed.instance.incarnation != instance.incarnation:
                self._stop(followed)
                followed = self._followed[instance_id] = Followed(instance)
            elif followed.instance.authority == instance.authority:
                followed.instance = instance
                self._see(followed)
                continue
            self._stop(followed)
            followed.instance = instance
            self._see(followed)
            followed.task = tasks.create_task(self._follow(followed), name=f"follow {instance.id}")
        self._publish()

    def _stop(self, followed: Followed | None) -> None:
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    async def _follow(self, followed: Followed) -> None:
        failures = 0
        while True:
            try:
                document, pause = await self._ask(followed, retry=failures > 0)
            except MetadataUnavailableError as error:
                self._failed(followed, error, first=failures == 0)
                failures += 1
                pause = _backoff(failures)
            else:
                failures = 0
                self._answered(followed, document)
            if pause > 0:
                await asyncio.sleep(pause)

    async def _ask(self, followed: Followed, *, retry: bool) -> tuple[Document, float]:
        """The document, and the seconds to pass before the next question: none where the worker holds GETs."""
        known = followed.document
        may_hold = not retry and followed.holds is not False and known is not None and known.etag is not None
        if may_hold and known is not None:
            started = asyncio.get_running_loop().time()
            answer = await self._client.hold(followed.instance, known)
            if answer is not None:
                unchanged = answer.document.etag == known.etag
                early = asyncio.get_running_loop().time() - started < self._client.wait / 2
                followed.holds = answer.held and not (unchanged and early)
                return answer.document, 0.0 if followed.holds else _poll()
        document = (await self._client.fetch(followed.instance, known, retry=retry)).document
        try_holding = not may_hold and followed.holds is not False and document.etag is not None
        return document, 0.0 if try_holding else _poll()

    def _answered(self, followed: Followed, document: Document) -> None:
        followed.problem = None if document.ready else "the worker itself says that it is not ready"
        if document == followed.document and followed.reachable == document.ready:
            return
        if document.ready and not followed.reachable:
            followed.holds = None  # a worker that drains holds nothing; one that is back may hold again
        followed.document, followed.reachable = document, document.ready
        self._see(followed)
        self._publish_soon()

    def _failed(self, followed: Followed, error: MetadataUnavailableError, *, first: bool) -> None:
        followed.problem = error.reason
        if not isinstance(error, WorkerUnreachableError):
            return
        followed.holds = None
        if first:
            self._suspect(followed.instance.id)
        if followed.reachable:
            followed.reachable = False
            self._see(followed)
            self._publish_soon()

    def _see(self, followed: Followed) -> None:
        if followed.document is not None:
            followed.seen = replace(
                followed.instance,
                revision=followed.document.revision,
                reachable=followed.reachable,
                reader=self,
            )

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._publishing = False
        if self._membership.error is None and self._membership.synced:
            instances = {i: f.seen for i, f in self._followed.items() if f.seen is not None}
            self.truth.replace(instances, self._membership.known, self._membership.health)


def _poll() -> float:
    return _POLL * random.uniform(0.9, 1.1)


def _backoff(failures: int) -> float:
    """Seconds, full jitter over 0.05 s doubling to 5 s."""
    return random.uniform(0, min(_LAST_RETRY, _FIRST_RETRY * 2 ** min(failures, 10)))
