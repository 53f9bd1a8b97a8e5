"""The public API: the `ServiceDiscovery` Protocol, and `SourceDiscovery`, its implementation over any `Source`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol, Self
from weakref import WeakSet

from discovery import explanation
from discovery.errors import DiscoveryError, DiscoveryTimeoutError
from discovery.explanation import Explanation
from discovery.instance import Instance, InstanceStatus
from discovery.metadata.client import MetadataClient
from discovery.shared_watch import SharedWatch
from discovery.source import ComponentKey, Source, component_key
from discovery.watch import InstanceEventStream, Truth


class ComponentCount(NamedTuple):
    """The instances of one component, and its candidates that are none."""

    key: ComponentKey
    ready: int
    others: int


ANY_COMPONENT: Final = ComponentKey("*", "*")
"""Stands for every name where a source lists workers: they are the same under each."""


class ServiceDiscovery(Protocol):
    """An async context manager; leaving it ends all its watches."""

    async def list_instances(
        self, namespace: str, component: str, *, timeout: float = 10.0
    ) -> list[Instance]:
        """The READY instances, sorted by id. `timeout` in seconds.

        Raises `DiscoveryTimeoutError` with the source's last problem; a source out of reach never gives an empty list.
        """
        ...

    def watch(self, namespace: str, component: str, *, metadata: bool = False) -> InstanceEventStream:
        """The instances and their changes. With `metadata`, an instance is Added once its document has arrived, changes of
        the document are Updated events, and `Instance.metadata()` returns the pushed copy.
        """
        ...

    async def explain(self, namespace: str, component: str) -> Explanation:
        """Every candidate, and why it is not an instance."""
        ...

    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SourceDiscovery:
    """`ServiceDiscovery` over any `Source`, so that sources cannot drift apart.

    `sync_timeout`: seconds that entering a watch waits for the first snapshot.
    """

    def __init__(
        self, source: Source, *, client: MetadataClient | None = None, sync_timeout: float = 10.0
    ) -> None:
        self._source = source
        # a source that does not inherit from `Source` may leave it out
        self._needs_documents = getattr(source, "needs_documents", Source.needs_documents)
        self._client = client or MetadataClient()
        self._sync_timeout = sync_timeout
        self._shared: dict[ComponentKey, SharedWatch] = {}
        self._streams: WeakSet[InstanceEventStream] = WeakSet()
        self._closed = False

    async def list_instances(
        self, namespace: str, component: str, *, timeout: float = 10.0
    ) -> list[Instance]:
        async with self._use_shared(component_key(namespace, component), timeout) as shared:
            instances = shared.membership.instances
            return [instances[i] for i in sorted(instances)]

    def watch(self, namespace: str, component: str, *, metadata: bool = False) -> InstanceEventStream:
        key = component_key(namespace, component)
        stream = InstanceEventStream(lambda: self._documents(key) if metadata else self._membership(key))
        self._streams.add(stream)
        return stream

    async def explain(self, namespace: str, component: str) -> Explanation:
        key = component_key(namespace, component)
        async with self._use_shared(key, self._sync_timeout) as shared:
            candidates = shared.report.snapshot.candidates
            found = explanation.merge_explained(candidates, await self._source.explain(key))
            explained = await asyncio.gather(*(explanation.explain_candidate(shared, one) for one in found))
            self._check_open()
            elsewhere: tuple[ComponentKey, ...] = ()
            if not explained:
                with suppress(DiscoveryError):  # it is only a hint
                    elsewhere = tuple(await self._components())
            ordered = explanation.with_shared_addresses(sorted(explained, key=lambda e: e.id))
            return Explanation(key, shared.membership.health, tuple(ordered), elsewhere)

    async def survey(self, most: int, *, timeout: float = 10.0) -> tuple[list[ComponentCount], int]:
        """Count the first `most` components by name; also returns how many more there are. `timeout` in seconds.

        Raises `DiscoveryError` if the source cannot list them, `DiscoveryTimeoutError` if it takes longer.
        """
        self._check_open()
        try:
            async with asyncio.timeout(timeout):
                keys = [ANY_COMPONENT] if self.is_list else await self._components()
                counts = await asyncio.gather(*(self._count(key, timeout) for key in keys[:most]))
        except DiscoveryTimeoutError:
            raise
        except TimeoutError:
            raise DiscoveryTimeoutError(
                f"the source did not list its components within {timeout:g} s"
            ) from None
        return counts, len(keys) - len(counts)

    async def _components(self) -> list[ComponentKey]:
        """Without what others put there under names that no component may have."""
        return sorted(filter(_is_valid, await self._source.components()))

    async def _count(self, key: ComponentKey, timeout: float) -> ComponentCount:
        asked = component_key("default", "default") if key == ANY_COMPONENT else key
        async with self._use_shared(asked, timeout) as shared:
            ready, candidates = len(shared.membership.instances), len(shared.report.snapshot.candidates)
            return ComponentCount(key, ready, candidates - ready)

    @property
    def is_list(self) -> bool:
        """Whether the source names workers that did not register themselves."""
        return not self._needs_documents

    def missing(self, namespace: str, component: str) -> dict[str, str]:
        """Why candidates are missing from the open watches with metadata, by id: a worker does not answer, a name does not
        resolve. Without I/O, in contrast to `explain`. Empty if nothing is watched.
        """
        shared = self._shared.get(component_key(namespace, component))
        return {} if shared is None else explanation.missing(shared)

    def excluded(self, namespace: str, component: str) -> dict[str, InstanceStatus | None]:
        """The candidates that open watches do not show, by id, with their status if they have a valid record. Without I/O."""
        shared = self._shared.get(component_key(namespace, component))
        return {} if shared is None else explanation.excluded(shared)

    def without_document(self, namespace: str, component: str) -> dict[str, str]:
        """Why listed instances in the open watches with metadata have no valid document, by id. Without I/O. Workers that
        answered 404, 405 or 501 are left out: having no document is no fault.
        """
        shared = self._shared.get(component_key(namespace, component))
        follower = None if shared is None else shared.follower
        return {} if follower is None else dict(follower.without_document())

    @asynccontextmanager
    async def truth(self, namespace: str, component: str) -> AsyncIterator[Truth]:
        """The live set with documents, for programs that need it whole: `Truth.known` has the candidates that are not ready.

        Entering raises as `list_instances` does."""
        async with self._documents(component_key(namespace, component)) as truth:
            yield truth

    async def aclose(self) -> None:
        """End all streams; calls that wait for a snapshot raise RuntimeError."""
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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:  # a type checker reports the missing methods itself

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "a discovery is entered with `async with`; without await: `with discovery.blocking.open(...)`"
            )

        __exit__ = __enter__

    @asynccontextmanager
    async def _membership(self, key: ComponentKey) -> AsyncIterator[Truth]:
        async with self._use_shared(key, self._sync_timeout) as shared, shared.watch() as truth:
            yield truth

    @asynccontextmanager
    async def _documents(self, key: ComponentKey) -> AsyncIterator[Truth]:
        async with self._use_shared(key, self._sync_timeout) as shared, shared.watch_documents() as truth:
            yield truth

    @asynccontextmanager
    async def _use_shared(self, key: ComponentKey, timeout: float) -> AsyncIterator[SharedWatch]:
        """The shared watch of `key`, synced; its last user ends it."""
        self._check_open()
        shared = self._shared.get(key)
        # a source's error is final for those who share its run; the next call begins another one
        if shared is None or shared.membership.error is not None:
            shared = self._shared[key] = SharedWatch(
                self._source, key, self._client, needs_documents=self._needs_documents
            )
        shared.users += 1
        try:
            await shared.wait_synced(timeout)
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


def _is_valid(key: ComponentKey) -> bool:
    with suppress(ValueError):
        return component_key(*key) == key
    return False


def _closed() -> RuntimeError:
    return RuntimeError("this discovery is closed; open another one")
