"""What users type against, and its one implementation over any Source."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakSet

from discovery.explanation import ExplainedCandidate, Explanation, with_neighbours
from discovery.instance import Instance, InstanceStatus
from discovery.metadata.client import MetadataClient
from discovery.shared import SharedWatch
from discovery.source import Candidate, ComponentKey, Source, component_key
from discovery.watch import InstanceEventStream, Truth


class ServiceDiscovery(Protocol):
    """Who is there? An async context manager; leaving it ends all its watches."""

    async def list_instances(
        self, namespace: str, component: str, *, timeout: float = 10.0
    ) -> list[Instance]:
        """The READY instances, sorted by id. `timeout` in seconds.

        Raises `DiscoveryTimeoutError` naming what was last heard; a source out of reach is never an empty list.
        """
        ...

    def watch(self, namespace: str, component: str, *, metadata: bool = False) -> InstanceEventStream:
        """The instances and their changes. With `metadata`, an instance is told once its document is in, changes of
        documents and of reachability are told, and `Instance.metadata()` answers from the pushed copy.
        """
        ...

    async def explain(self, namespace: str, component: str) -> Explanation:
        """Every candidate, and the one reason why it is not an instance."""
        ...

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SourceDiscovery:
    """`ServiceDiscovery` over any `Source`, so that sources cannot drift apart.

    `sync_timeout`: seconds that entering a watch waits for the first set.
    """

    def __init__(
        self, source: Source, *, client: MetadataClient | None = None, sync_timeout: float = 10.0
    ) -> None:
        self._source = source
        self._client = client or MetadataClient()
        self._sync_timeout = sync_timeout
        self._shared: dict[ComponentKey, SharedWatch] = {}
        self._streams: WeakSet[InstanceEventStream] = WeakSet()
        self._closed = False

    async def list_instances(
        self, namespace: str, component: str, *, timeout: float = 10.0
    ) -> list[Instance]:
        async with self._attached(component_key(namespace, component), timeout) as shared:
            instances = shared.membership.instances
            return [instances[i] for i in sorted(instances)]

    def watch(self, namespace: str, component: str, *, metadata: bool = False) -> InstanceEventStream:
        key = component_key(namespace, component)
        stream = InstanceEventStream(lambda: self._documents(key) if metadata else self._membership(key))
        self._streams.add(stream)
        return stream

    async def explain(self, namespace: str, component: str) -> Explanation:
        key = component_key(namespace, component)
        async with self._attached(key, self._sync_timeout) as shared:
            found = _completed(shared.candidates, await self._source.explain(key))
            explained = await asyncio.gather(*(_explain(shared, candidate) for candidate in found))
            self._check_open()
            elsewhere = () if explained else tuple(sorted(await self._source.components()))
            candidates = tuple(with_neighbours(sorted(explained, key=lambda e: e.id)))
            return Explanation(key, shared.membership.health, candidates, elsewhere)

    def missing(self, namespace: str, component: str) -> dict[str, str]:
        """Who cannot be told by a watch with metadata that is open now, and why, by id: a worker that does not answer,
        a name that does not resolve. As `explain`, but nobody is asked. Empty where nothing is watched.
        """
        shared = self._shared.get(component_key(namespace, component))
        return {} if shared is None else shared.missing()

    def without_document(self, namespace: str, component: str) -> dict[str, str]:
        """Who is listed, and told by a watch with metadata that is open now though it gave no sound document, and why, by
        id. A worker that answers that there is none (404, 405, 501) is not among them.
        """
        shared = self._shared.get(component_key(namespace, component))
        return {} if shared is None else shared.without_document()

    async def aclose(self) -> None:
        """End what is under way: streams end, whoever waits for a set gets RuntimeError."""
        self._closed = True
        async with AsyncExitStack() as closing:  # last in, first out
            closing.push_async_callback(self._source.aclose)
            closing.push_async_callback(self._client.aclose)
            for shared in list(self._shared.values()):
                closing.push_async_callback(shared.fail, _closed())
            for stream in list(self._streams):
                closing.push_async_callback(stream.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _membership(self, key: ComponentKey) -> AsyncIterator[Truth]:
        async with self._attached(key, self._sync_timeout) as shared, shared.watched() as truth:
            yield truth

    @asynccontextmanager
    async def _documents(self, key: ComponentKey) -> AsyncIterator[Truth]:
        async with self._attached(key, self._sync_timeout) as shared, shared.followed() as truth:
            yield truth

    @asynccontextmanager
    async def _attached(self, key: ComponentKey, timeout: float) -> AsyncIterator[SharedWatch]:
        """The shared watch of `key`, synced; it ends with its last user."""
        self._check_open()
        shared = self._shared.get(key)
        if shared is None or shared.membership.error is not None:
            shared = self._shared[key] = SharedWatch(self._source, key, self._client)
        shared.users += 1
        try:
            await shared.synced(timeout)
            yield shared
        finally:
            shared.users -= 1
            if shared.users == 0:
                if self._shared.get(key) is shared:
                    del self._shared[key]
                await shared.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()


def _closed() -> RuntimeError:
    return RuntimeError("this discovery is closed; open another one")


def _completed(candidates: Iterable[Candidate], looked: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, those that only a closer look finds among them; its reason counts where they have none."""
    closer = {candidate.id: candidate for candidate in looked}
    known = [
        replace(c, reason=closer[c.id].reason) if c.reason is None and c.id in closer else c
        for c in candidates
    ]
    ids = {candidate.id for candidate in known}
    return known + [candidate for candidate in closer.values() if candidate.id not in ids]


async def _explain(shared: SharedWatch, candidate: Candidate) -> ExplainedCandidate:
    member = shared.membership.instances.get(candidate.id)
    is_instance = (
        member is not None
        and candidate.instance is not None
        and member.incarnation == candidate.instance.incarnation
    )
    reason = candidate.reason
    if is_instance and member is not None and (problem := await shared.problem(member)):
        reason = f"its metadata is unavailable: {problem}"
    if reason is None and not is_instance and candidate.instance is not None:
        not_ready = candidate.instance.status is InstanceStatus.NOT_READY
        draining = f"its status is {candidate.instance.status}"
        reason = await shared.standing(candidate.instance) if not_ready else draining
    return ExplainedCandidate(candidate.id, candidate.instance, is_instance, reason)
