"""Pushed metadata: one held GET per instance, and the truth that follows from membership and documents together."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from discovery.copy_on_write import CopyOnWriteDict
from discovery.document import Document, read_metadata
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import Instance
from discovery.metadata import MetadataClient
from discovery.pace import Pace, next_poll
from discovery.watch import Truth

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Followed:
    """One instance under observation: its last good document, or why there is none."""

    instance: Instance
    document: Document | None = None
    reachable: bool = True
    pace: Pace = field(default_factory=Pace)
    problem: str | None = "it has not answered yet"
    task: asyncio.Task[None] | None = None
    is_logged: bool = False


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
        self._seen: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        """What readers are told: those whose document is in."""
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
            return read_metadata(instance, followed.document)
        raise MetadataUnavailableError(instance.id, instance.authority, "this instance is not there any more")

    def problems(self) -> Mapping[str, str]:
        """Why members are not told yet, or are unreachable, by instance id."""
        return {key: f.problem for key, f in self._followed.items() if f.problem is not None}

    async def _follow_membership(self, tasks: asyncio.TaskGroup) -> None:
        with self._membership.subscribed() as ear:
            while self._membership.error is None:
                ear.wake.clear()
                changed, ear.dirty = ear.dirty, set()
                self._adopt(tasks, changed)
                await ear.wake.wait()
        raise self._membership.error

    def _adopt(self, tasks: asyncio.TaskGroup, changed: Collection[str]) -> None:
        for instance_id in changed:
            instance = self._membership.instances.get(instance_id)
            if instance is None:
                self._stop(self._followed.pop(instance_id, None))
                self._seen.pop(instance_id, None)
            else:
                self._keep(tasks, instance)
        self.publish()

    def _keep(self, tasks: asyncio.TaskGroup, instance: Instance) -> None:
        followed = self._followed.get(instance.id)
        if followed is not None and followed.instance is instance:
            return
        if followed is None or followed.instance.incarnation != instance.incarnation:
            self._stop(followed)
            self._seen.pop(instance.id, None)
            followed = self._followed[instance.id] = Followed(instance)
        elif (followed.instance.address, followed.instance.port) == (instance.address, instance.port):
            followed.instance = instance
            self._see(followed)
            return
        self._stop(followed)
        followed.instance, followed.pace = instance, Pace()
        self._see(followed)
        followed.task = tasks.create_task(self._follow(followed), name=f"follow {instance.id}")

    def _stop(self, followed: Followed | None) -> None:
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    async def _follow(self, followed: Followed) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                pause = await self._look(followed)
            except Exception as error:  # noqa: BLE001 -- one worker's fault must not end the watch of all others
                pause = self._broke(followed, error)
            await asyncio.sleep(max(pause, followed.pace.admit(now())))

    async def _look(self, followed: Followed) -> float:
        """Ask once and take in what comes; the seconds to pass before the next question."""
        try:
            document, pause = await self._ask(followed)
        except MetadataUnavailableError as error:
            return self._failed(followed, error)
        self._answered(followed, document)
        return pause

    async def _ask(self, followed: Followed) -> tuple[Document, float]:
        """The document, and the seconds to pass before the next question: none where the worker holds GETs."""
        now, pace, known = asyncio.get_running_loop().time, followed.pace, followed.document
        may_hold = known is not None and known.etag is not None and pace.may_hold(now())
        if may_hold and known is not None and (document := await self._hold(followed, known)) is not None:
            return document, pace.next_hold(now())
        retry = pace.failures > 0
        document = (await self._client.fetch(followed.instance, known, retry=retry)).document
        pace.answered()
        return document, next_poll() if may_hold or document.etag is None else pace.next_hold(now())

    async def _hold(self, followed: Followed, known: Document) -> Document | None:
        """What a held GET brought; None where none may be held. How well it was held is kept in mind."""
        now, pace = asyncio.get_running_loop().time, followed.pace
        started = now()
        try:
            answer = await self._client.hold(followed.instance, known)
        except MetadataUnavailableError:
            pace.hold_failed(now())
            raise
        if answer is None:
            return None
        unchanged = answer.document == known and now() - started < self._client.wait / 2
        if not answer.held:
            pace.hold_refused(now())
        elif unchanged or answer.document.etag is None:
            pace.hold_failed(now())
        else:
            pace.held()
        return answer.document

    def _answered(self, followed: Followed, document: Document) -> None:
        followed.is_logged = False
        followed.problem = None if document.ready else "the worker itself says that it is not ready"
        if document == followed.document and followed.reachable == document.ready:
            return
        if document.ready and followed.document is not None and not followed.document.ready:
            followed.pace.forgive()  # a worker that drains holds nothing; one that is back may hold again
        followed.document, followed.reachable = document, document.ready
        self._see(followed)
        self._publish_soon()

    def _failed(self, followed: Followed, error: MetadataUnavailableError) -> float:
        followed.problem = error.reason
        unreachable = isinstance(error, WorkerUnreachableError)
        if unreachable and followed.pace.failures == 0:
            self._suspect(followed.instance.id)
        if unreachable and followed.reachable:
            followed.reachable = False
            self._see(followed)
            self._publish_soon()
        return followed.pace.failed(unreachable=unreachable)

    def _broke(self, followed: Followed, error: Exception) -> float:
        """What nobody foresaw is this worker's problem; said once until it answers again."""
        followed.problem = f"{type(error).__name__}: {error}"
        if not followed.is_logged:
            followed.is_logged = True
            log.error("following the metadata of %s failed", followed.instance.id, exc_info=error)
        return followed.pace.failed(unreachable=False)

    def _see(self, followed: Followed) -> None:
        if followed.document is not None:
            self._seen[followed.instance.id] = replace(
                followed.instance,
                revision=followed.document.revision,
                reachable=followed.reachable,
                reader=self,
            )

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            asyncio.get_running_loop().call_soon(self.publish)

    def publish(self) -> None:
        """Tell what is known now; until the first document is in, that is an empty set and the source's health."""
        self._publishing = False
        if self._membership.error is None and self._membership.synced:
            self.truth.replace(self._seen.frozen(), self._membership.known, self._membership.health)
