"""Pushed metadata: one held GET per instance, and the truth that follows from membership and documents together."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from discovery.copy_on_write import CopyOnWriteDict
from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.explanation import in_full
from discovery.instance import Instance
from discovery.metadata.client import MetadataAnswer, MetadataClient
from discovery.metadata.document import NO_DOCUMENT, MetadataDocument, read_metadata
from discovery.metadata.followed_worker import Followed
from discovery.metadata.schedule import Pace
from discovery.watch import Subscription, Truth

log = logging.getLogger(__name__)

_GRACE: Final = 0.25
"""Seconds that a listed worker which listens has to send a document before it is told without one."""
_LEAVING: Final = 1.0
"""Seconds in which the source may say that a worker left whose connection was closed: its port closes first."""
_LOOKED_AT: Final = 2048
"""Workers that a watch without metadata looks at, at most: what it costs must not grow with the cluster."""
_IN_ONE_TURN: Final = 50
_MANY: Final = 4096
"""Workers beyond which each is polled less often, so that all of them together are not polled more often."""


@dataclass(frozen=True, slots=True)
class FollowRules:
    """`needs_documents`: as the source has it. `suspect`: told of an id that just stopped answering. `on_silence`:
    called when `DocumentFollower.silent` changed."""

    needs_documents: bool
    suspect: Callable[[str], None]
    on_silence: Callable[[], None]


class DocumentFollower:
    """Turns the truth about membership into the truth about membership and documents.

    An instance is in it once its document is, or, where it is listed, once it listens. Reachability is a hint: a GET that is reset or goes silent, or a worker
    that does not call itself ready, turns it false; the next answer clears it.
    """

    def __init__(self, membership: Truth, client: MetadataClient, rules: FollowRules) -> None:
        self.truth = Truth()
        self.silent: dict[str, str] = {}
        """Who answered once and does not any more: id and incarnation."""
        self._membership = membership
        self._client = client
        self._rules = rules
        self._followed: dict[str, Followed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._logged: set[str] = set()
        self._seen: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        """What readers are told: those whose document is in."""
        self._publishing = False
        self._ended = False
        self._wanted = False
        self._ear = Subscription(())

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
            self.silent.clear()

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

    def without_document(self) -> Mapping[str, str]:
        """Why members that are listed are told without a document, by instance id; those that have none by right are
        not among them."""
        listed = (f for f in self._followed.values() if f.document is NO_DOCUMENT)
        return {f.instance.id: f.problem for f in listed if f.problem is not None}

    def want_documents(self) -> None:
        """From now on all are followed and `truth` is told; before, as many as are looked at in a watch without
        metadata."""
        if not self._wanted:
            self._wanted = True
            self._ear.dirty.update(self._membership.instances)
            self._ear.wake.set()
        self.publish()

    def follows(self, instance_id: str) -> bool:
        return instance_id in self._followed

    async def _follow_membership(self, tasks: asyncio.TaskGroup) -> None:
        with self._membership.subscribed() as ear:
            self._ear = ear
            while self._membership.error is None:
                ear.wake.clear()
                changed, ear.dirty = ear.dirty, set()
                await self._adopt(tasks, changed)
                await ear.wake.wait()
        raise self._membership.error

    async def _adopt(self, tasks: asyncio.TaskGroup, changed: Collection[str]) -> None:
        """Drop at once who is gone; of thousands who are new, a few in each turn of the loop."""
        members = self._membership.instances
        for instance_id in (i for i in changed if i not in members):
            self._followed.pop(instance_id, None)
            self._forget(instance_id)
            self._seen.pop(instance_id, None)
        for number, instance_id in enumerate(changed):
            instance = self._membership.instances.get(instance_id)
            if instance is not None and (self._wanted or self._is_looked_at(instance_id)):
                self._keep(tasks, instance)
            if number % _IN_ONE_TURN == _IN_ONE_TURN - 1:
                await asyncio.sleep(0)
        self.publish()

    def _is_looked_at(self, instance_id: str) -> bool:
        return instance_id in self._followed or len(self._followed) < _LOOKED_AT

    def _keep(self, tasks: asyncio.TaskGroup, instance: Instance) -> None:
        followed = self._followed.get(instance.id)
        if followed is not None and followed.instance is instance:
            return
        poll = self._client.silence.poll
        if followed is None or followed.instance.incarnation != instance.incarnation:
            self._seen.pop(instance.id, None)
            followed = Followed(instance, self._rules.needs_documents)
            self._followed[instance.id] = followed
        elif (followed.instance.address, followed.instance.port) == (instance.address, instance.port):
            followed.instance = instance
            self._see(followed)
            return
        self._forget(instance.id)
        followed.instance, followed.pace = instance, Pace(poll)
        self._see(followed)
        self._tasks[instance.id] = tasks.create_task(self._follow(followed), name=f"follow {instance.id}")

    def _forget(self, instance_id: str) -> None:
        task = self._tasks.pop(instance_id, None)
        if task is not None:
            task.cancel()
        self._logged.discard(instance_id)
        self.silent.pop(instance_id, None)

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

    async def _ask(self, followed: Followed) -> tuple[MetadataDocument, float]:
        """The document, and the seconds to pass before the next question: none where the worker holds GETs."""
        now, pace, known = asyncio.get_running_loop().time, followed.pace, followed.document
        may_hold = known is not None and known.etag is not None and pace.may_hold(now())
        if may_hold and known is not None and (document := await self._hold(followed, known)) is not None:
            return document, pace.next_hold(now())
        document = (await self._fetch(followed)).document
        pace.answered()
        if not may_hold and document.etag is not None and pace.may_hold(now()):
            return document, 0.0
        return document, pace.next_poll() * max(1.0, len(self._followed) / _MANY)

    async def _fetch(self, followed: Followed) -> MetadataAnswer:
        """A worker that answers is given the time after which it is silent; any other one, more."""
        is_retry = followed.pace.failures > 0
        prompt = followed.was_heard and not is_retry and self._client.silence.in_every_watch
        timeout = min(self._client.silence.margin, self._client.timeout) if prompt else None
        waits = not followed.needs_document and not followed.is_told
        connected = partial(self._listens_soon, followed) if waits else None
        return await self._client.fetch(
            followed.instance, followed.document, retry=is_retry, timeout=timeout, connected=connected
        )

    async def _hold(self, followed: Followed, known: MetadataDocument) -> MetadataDocument | None:
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
        unchanged = answer.document == known and now() - started < self._client.silence.wait / 2
        if not answer.held:
            pace.hold_refused(now())
        elif unchanged or answer.document.etag is None:
            pace.hold_failed(now())
        else:
            pace.held()
        return answer.document

    def _answered(self, followed: Followed, document: MetadataDocument) -> None:
        self._logged.discard(followed.instance.id)
        if followed.answered(document):
            self._tell(followed)
        self._heard(followed)

    def _failed(self, followed: Followed, error: MetadataUnavailableError) -> float:
        unreachable = isinstance(error, WorkerUnreachableError)
        if unreachable and followed.pace.failures == 0:
            self._rules.suspect(followed.instance.id)
        if followed.failed(error, in_full(error, self._client.scheme)):
            self._tell(followed)
        self._heard(followed)
        if isinstance(error, WorkerUnreachableError) and followed.silent:
            asyncio.get_running_loop().call_later(0 if error.silent else _LEAVING, self._miss, followed)
        if not unreachable and followed.is_told and not followed.needs_document:
            followed.pace.answered()  # it has no document for us, and is well
            return followed.pace.next_poll()
        return followed.pace.failed(unreachable=unreachable)

    def _listens_soon(self, followed: Followed) -> None:
        asyncio.get_running_loop().call_later(_GRACE, self._listens, followed)

    def _listens(self, followed: Followed) -> None:
        if (
            self._followed.get(followed.instance.id) is followed
            and not followed.is_told
            and followed.listens()
        ):
            self._tell(followed)

    def _heard(self, followed: Followed) -> None:
        if not followed.silent and self.silent.pop(followed.instance.id, None) is not None:
            self._rules.on_silence()

    def _miss(self, followed: Followed) -> None:
        """It is silent; if it was restarted or left meanwhile, nothing is said."""
        instance = followed.instance
        if self._followed.get(instance.id) is followed and followed.silent and instance.id not in self.silent:
            self.silent[instance.id] = instance.incarnation
            self._rules.on_silence()

    def _broke(self, followed: Followed, error: Exception) -> float:
        """What nobody foresaw is this worker's problem; said once until it answers again."""
        followed.problem = f"{type(error).__name__}: {error}"
        if followed.instance.id not in self._logged:
            self._logged.add(followed.instance.id)
            log.error("following the metadata of %s failed", followed.instance.id, exc_info=error)
        return followed.pace.failed(unreachable=False)

    def _see(self, followed: Followed) -> None:
        told = followed.told(self)
        if told is not None:
            self._seen[told.id] = told

    def _tell(self, followed: Followed) -> None:
        self._see(followed)
        self._publish_soon()

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            asyncio.get_running_loop().call_soon(self.publish)

    def publish(self) -> None:
        """Tell what is known now; until the first document is in, that is an empty set and the source's health."""
        self._publishing = False
        if self._wanted and self._membership.error is None and self._membership.synced:
            self.truth.replace(self._seen.frozen(), self._membership.known, self._membership.health)
