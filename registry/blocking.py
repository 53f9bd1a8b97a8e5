"""The registry API without `await`, for scripts, notebooks and workers that are not asyncio programs.

Each registry has one thread with an event loop. Calls may come from any thread, also from inside a running loop, which
they block. Instances that are still registered when the interpreter exits are removed.
"""

import ssl
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Self

from adsum.portal import Portal, PortalClosedError
from adsum.signals import on_sigterm_in_thread
from discovery.instance import Instance, InstanceStatus
from registry import opening
from registry.service import InstanceHandle as AsyncInstanceHandle
from registry.service import ServiceRegistry as AsyncServiceRegistry
from registry.service import StatusWord

__all__ = ["InstanceHandle", "ServiceRegistry", "open"]


class InstanceHandle:
    """`registry.InstanceHandle` without `await`. A context manager. RuntimeError in a forked child, except from `close`."""

    def __init__(self, native: AsyncInstanceHandle, portal: Portal) -> None:
        self._native = native
        self._portal = portal

    @property
    def instance(self) -> Instance:
        return self._native.instance

    def instance_id(self) -> str:
        return self._native.instance_id()

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Raises TypeError or ValueError, which name the invalid value; the old document then stays published."""
        self._portal.check_process()
        self._native.set_metadata(metadata)

    def set_ready(self, status: InstanceStatus | StatusWord, reason: str | None = None) -> None:
        """`status` is "ready", "not_ready" or "draining", else ValueError. `reason` is shown to people."""
        self._portal.check_process()
        self._native.set_ready(status, reason)

    def busy(self) -> AbstractContextManager[None]:
        """`with handle.busy(): ...` around each request; a drain waits for it. May be used in any thread."""
        self._portal.check_process()
        return self._native.busy()

    def drain(self, timeout: float) -> None:
        """Report DRAINING, wait until no request is busy, at most `timeout` seconds, then close."""
        self._portal.check_process()
        with suppress(PortalClosedError):
            self._portal.call(self._native.drain, timeout)

    def drain_on_sigterm(self, timeout: float = 30.0) -> None:
        """On SIGTERM, drain in a thread, then run the previous SIGTERM action, which by default ends the process.

        A second SIGTERM cuts the drain short. ValueError outside the main thread.
        """
        on_sigterm_in_thread(lambda: self.drain(timeout))

    def close(self) -> None:
        """Idempotent. Does nothing in a forked child: the registration belongs to the parent."""
        with suppress(PortalClosedError):
            self._portal.call(self._native.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServiceRegistry:
    """`registry.ServiceRegistry` without `await`. A context manager; `close` closes its handles and ends its thread.

    RuntimeError after `close`, and in a child that was forked after the first call.
    """

    def __init__(self, native: AsyncServiceRegistry, portal: Portal) -> None:
        self._native = native
        self._portal = portal
        self._handles: dict[tuple[str, str], InstanceHandle] = {}

    def register_instance(self, namespace: str, component: str) -> InstanceHandle:
        """Register this worker as NOT_READY. Raises ValueError for an invalid name, else `RegistrationError`."""

        async def register() -> AsyncInstanceHandle:
            return await self._native.register_instance(namespace, component)

        native = self._portal.call(register)
        handle = self._handles.get((namespace, component))
        if handle is None or handle._native is not native:
            handle = self._handles[namespace, component] = InstanceHandle(native, self._portal)
        return handle

    def close(self) -> None:
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(  # noqa: PLR0913  # as registry.open
    url: str | None = None,
    *,
    address: str | None = None,
    port: int | None = None,
    instance_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    token: str | None = None,
) -> ServiceRegistry:
    """Takes the arguments of `registry.open`, except `contract`; the registry's own thread serves the wire contract."""
    native = opening.open(
        url,
        address=address,
        port=port,
        instance_id=instance_id,
        labels=labels,
        ssl_context=ssl_context,
        token=token,
    )
    return ServiceRegistry(native, Portal(native.aclose, "registry"))
