"""Implements `InstanceHandle` over any `Membership`: metadata, readiness, drain, leave."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import anyio

from adsum.signals import on_sigterm
from discovery.errors import RegistrationError
from discovery.instance import Instance, InstanceStatus
from discovery.metadata.known_keys import ignored_keys
from registry.contract import Contract
from registry.document import PublishedDocument
from registry.service import StatusWord

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 0.1
"""Seconds without a request after which a drain ends: routers send requests until they have heard of DRAINING."""


class Membership(Protocol):
    """Makes one instance visible in one source of truth; each backend implements it."""

    async def join(self, instance: Instance) -> Instance:
        """Claim the id and publish the instance. Returns it with the id and incarnation that the source of truth uses.

        Raises `RegistrationError`: the id is taken, the root cannot be written, ...
        """
        ...

    def update(self, instance: Instance) -> None:
        """Publish another status. Called in the loop's thread, so it must not block.

        Raises `RegistrationError`; the old status then stays published.
        """
        ...

    async def leave(self) -> None:
        """Remove the instance for every watcher. Idempotent; also called after a failed `join`."""
        ...


class Serving(Protocol):
    """Serves the wire contract: on a port of its own, or in the worker's application."""

    async def start(self) -> int:
        """Returns the port to publish."""
        ...

    async def aclose(self) -> None: ...


class RegisteredInstance:
    """The `InstanceHandle` of every backend. Bound to the event loop in which it was opened."""

    def __init__(
        self,
        instance: Instance,
        document: PublishedDocument,
        membership: Membership,
        contract: Contract,
        serving: Serving,
    ) -> None:
        self.instance = instance
        self._document = document
        self._membership = membership
        self._contract = contract
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._leaving: asyncio.Task[None] | None = None
        self._draining = False
        self._lock = threading.Lock()
        self._active_requests = 0
        self._requests_started = 0
        self._idle = asyncio.Event()
        self._ignored = ""

    @classmethod
    async def join(
        cls, proposal: Instance, membership: Membership, contract: Contract, serving: Serving
    ) -> "RegisteredInstance":
        """Serve the contract, then join: readers GET `/metadata` as soon as they see the instance.

        Raises `RegistrationError`, after everything that was opened is closed again.
        """
        document = PublishedDocument.of(proposal.id, proposal.incarnation)
        contract.bind(document)
        try:
            port = await serving.start()
            instance = await membership.join(replace(proposal, port=port))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _leave(membership, contract, serving)
            raise
        document.identify(instance.id, instance.incarnation, instance.labels)
        return cls(instance, document, membership, contract, serving)

    @property
    def closed(self) -> bool:
        return self._leaving is not None

    def instance_id(self) -> str:
        return self.instance.id

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._check_open()
        self._document.set_metadata(metadata)
        ignored = "; ".join(ignored_keys(metadata))
        # once, though a worker may publish its document again and again
        if ignored and ignored != self._ignored:
            log.warning("%s: in its metadata %s", self.instance_id(), ignored)
        self._ignored = ignored

    def set_ready(self, status: InstanceStatus | StatusWord, reason: str | None = None) -> None:
        requested = InstanceStatus(status)
        self._check_open()
        self._run_in_loop(lambda: self._publish_status(requested, reason))

    @contextmanager
    def busy(self) -> Iterator[None]:
        self._count_requests(+1)
        try:
            yield
        finally:
            self._count_requests(-1)

    async def drain(self, timeout: float) -> None:
        if not self.closed:
            self._begin_drain()
            with anyio.move_on_after(timeout):
                await self._wait_until_idle()
            if self._active_requests:
                log.warning(
                    "%s: %d requests are not done %g s after draining began",
                    self.instance_id(),
                    self._active_requests,
                    timeout,
                )
        await self.leave()

    def drain_on_sigterm(self, timeout: float = 30.0) -> None:
        on_sigterm(lambda: self.drain(timeout))

    async def close(self) -> None:
        self._users -= 1
        if self._users <= 0:
            await self.leave()

    def add_user(self) -> "RegisteredInstance":
        """Count another user, who must `close`; the last one to close leaves."""
        self._users += 1
        return self

    async def leave(self) -> None:
        """Leave, however many users there are. Concurrent calls wait for the same departure."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(
                _leave(self._membership, self._contract, self._serving), name=f"leave {self.instance_id()}"
            )
        with anyio.CancelScope(shield=True):
            await asyncio.shield(self._leaving)

    def _publish_status(self, status: InstanceStatus, reason: str | None = None) -> None:
        """Publish in the document and in the source of truth, so that no reader sees a ready instance whose own
        document denies it: READY goes to the document first, every other status to the source first.
        """
        self._check_open()
        if self._draining:
            return
        before = self._document.current
        updated = replace(self.instance, status=status)
        if before.status is status is self.instance.status:
            self._document.set_status(status, reason)
            return
        if status is InstanceStatus.READY:
            self._document.set_status(status, reason)
        try:
            self._membership.update(updated)
        except RegistrationError:
            if status is InstanceStatus.READY:
                status, reason = before.status, before.reason
            self._document.set_status(status, reason)
            raise
        self._document.set_status(status, reason)
        self.instance = updated

    def _begin_drain(self) -> None:
        try:
            self._publish_status(InstanceStatus.DRAINING)
        except RegistrationError as error:  # leaving matters more than saying so beforehand
            log.warning("%s drains, but %s", self.instance_id(), error)
        self._draining = True
        self._update_idle()

    async def _wait_until_idle(self) -> None:
        starts_before = None
        while starts_before != self._requests_started or self._active_requests:
            starts_before = self._requests_started
            await self._idle.wait()
            await anyio.sleep(_IDLE_SECONDS)

    def _count_requests(self, change: int) -> None:
        with self._lock:
            self._active_requests += change
            self._requests_started += change > 0
        if self._draining:
            with suppress(RuntimeError):  # the loop is closed, so no drain waits
                self._loop.call_soon_threadsafe(self._update_idle)

    def _update_idle(self) -> None:
        if self._active_requests:
            self._idle.clear()
        else:
            self._idle.set()

    def _check_open(self) -> None:
        if self.closed:
            raise RegistrationError(
                f"the registration of {self.instance.id!r} is closed; register_instance gives a new one"
            )

    def _run_in_loop(self, call: Callable[[], None]) -> None:
        if _running_loop() is self._loop:
            call()
            return

        async def run() -> None:
            call()

        running = run()
        try:
            called = asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError:  # the loop is closed
            running.close()
            raise
        called.result()


async def _leave(membership: Membership, contract: Contract, serving: Serving) -> None:
    try:
        await membership.leave()
    finally:
        contract.unbind()
        await serving.aclose()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
