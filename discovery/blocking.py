"""The same API without `await`, for scripts and notebooks.

Each discovery has one thread, which runs its event loop. Calls may come from any thread, also from a running event loop,
which they block as any blocking call does.
"""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Self

import discovery
from adsum.portal import Portal, PortalClosedError
from discovery import opening
from discovery.events import InstanceAddedEvent, InstanceEvent, InstanceRemovedEvent, InstanceUpdatedEvent
from discovery.explanation import Explanation
from discovery.service import ServiceDiscovery as AsyncServiceDiscovery
from discovery.watch import InstanceEventStream as AsyncInstanceEventStream
from discovery.watch import WatchHealth

__all__ = [
    "Instance",
    "InstanceAddedEvent",
    "InstanceEventStream",
    "InstanceRemovedEvent",
    "InstanceUpdatedEvent",
    "ServiceDiscovery",
    "open",
    "wait_for_instances",
]


@dataclass(frozen=True, slots=True)
class Instance(discovery.Instance):
    """An instance whose `metadata()` blocks."""

    portal: Portal | None = field(default=None, compare=False, repr=False)

    def metadata(self) -> dict[str, Any]:  # type: ignore[override]  # the same name without await is the point
        """Fetch the worker's metadata now; raises `MetadataUnavailableError` without an answer that can be read."""
        if self.portal is None:
            raise discovery.MetadataUnavailableError(
                self.id,
                self.authority,
                "this instance has no metadata reader: take it from list_instances or watch",
            )
        try:
            return self.portal.call(discovery.Instance.metadata, self)
        except PortalClosedError as error:
            raise discovery.MetadataUnavailableError(self.id, self.authority, str(error)) from error


class InstanceEventStream:
    """A context manager and an iterator; iterating enters it. Closing its discovery ends it."""

    def __init__(self, stream: AsyncInstanceEventStream, portal: Portal) -> None:
        self._stream = stream
        self._portal = portal

    def __enter__(self) -> Self:
        self._portal.call(self._stream.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def instances(self) -> Mapping[str, Instance]:
        """READY instances by id: a copy of the set as it is now."""
        self._portal.check_process()
        return {key: _blocking(instance, self._portal) for key, instance in self._stream.instances.items()}

    @property
    def health(self) -> WatchHealth:
        self._portal.check_process()
        return self._stream.health

    def __iter__(self) -> Iterator[InstanceEvent[Instance]]:
        return self

    def __next__(self) -> InstanceEvent[Instance]:
        try:
            return _blocking_event(self._portal.call(self._stream.__anext__), self._portal)
        except StopAsyncIteration:
            raise StopIteration from None
        except PortalClosedError:
            if not self._portal.closed:
                raise
            raise StopIteration from None

    def close(self) -> None:
        """End the iteration; any thread may call it. Idempotent. Does nothing in a forked child: the stream is the parent's."""
        with suppress(PortalClosedError):
            self._portal.call(self._stream.aclose)


class ServiceDiscovery:
    """`discovery.ServiceDiscovery` without `await`. A context manager; `close` ends its thread.

    Calls raise RuntimeError after `close`, and in a process that was forked after the first call.
    """

    def __init__(self, native: AsyncServiceDiscovery, portal: Portal) -> None:
        self._native = native
        self._portal = portal

    def list_instances(self, namespace: str, component: str, *, timeout: float = 10.0) -> list[Instance]:
        """The READY instances, sorted by id. Raises `DiscoveryTimeoutError`. `timeout` in seconds."""

        async def listed() -> list[discovery.Instance]:
            return await self._native.list_instances(namespace, component, timeout=timeout)

        return [_blocking(instance, self._portal) for instance in self._portal.call(listed)]

    def watch(self, namespace: str, component: str, *, metadata: bool = False) -> InstanceEventStream:
        return InstanceEventStream(self._native.watch(namespace, component, metadata=metadata), self._portal)

    def explain(self, namespace: str, component: str) -> Explanation:
        return self._portal.call(self._native.explain, namespace, component)

    def close(self) -> None:
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(
    url: str | None = None,
    *,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
    silent_after: float | None = None,
) -> ServiceDiscovery:
    native = opening.open(url, ssl_context=ssl_context, token=token, silent_after=silent_after)
    return ServiceDiscovery(native, Portal(native.aclose, "discovery"))


def wait_for_instances(
    service: ServiceDiscovery,
    namespace: str,
    component: str,
    *,
    count: int,
    stable_for: float = 0.0,
    timeout: float = 60.0,
) -> list[Instance]:
    async def wait() -> list[discovery.Instance]:
        return await discovery.wait_for_instances(
            service._native, namespace, component, count=count, stable_for=stable_for, timeout=timeout
        )

    return [_blocking(instance, service._portal) for instance in service._portal.call(wait)]


def _blocking(instance: discovery.Instance, portal: Portal) -> Instance:
    return Instance(**{f.name: getattr(instance, f.name) for f in fields(instance)}, portal=portal)


def _blocking_event(event: InstanceEvent, portal: Portal) -> InstanceEvent[Instance]:
    match event:
        case InstanceAddedEvent(instance):
            return InstanceAddedEvent(_blocking(instance, portal))
        case InstanceUpdatedEvent(old, new):
            return InstanceUpdatedEvent(_blocking(old, portal), _blocking(new, portal))
        case InstanceRemovedEvent(instance, reason):
            return InstanceRemovedEvent(_blocking(instance, portal), reason)
