"""The one InstanceHandle, over any Membership, so that backends cannot drift apart."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import anyio

from discovery.errors import RegistrationError
from discovery.instance import Instance, InstanceStatus
from registry.contract import Contract
from registry.document import PublishedDocument
from registry.service import StatusWord
from runtime.signals import on_sigterm

log = logging.getLogger(__name__)

_SETTLE: Final = 0.1
"""Seconds without a request after which a drain believes that no more come: routers pick until they have heard."""


class Membership(Protocol):
    """How one backend makes one instance visible to discovery."""

    async def join(self, instance: Instance) -> Instance:
        """Claim the id and be visible with the instance's status. May choose id and incarnation: the answer counts.

        Raises `RegistrationError`: the id is taken, the root cannot be written, ...
        """
        ...

    def update(self, instance: Instance) -> None:
        """Another status; quick, called in the loop's thread. Raises `RegistrationError`; the old one stays."""
        ...

    async def leave(self) -> None:
        """Gone for every watcher. Idempotent; also called after a failed join."""
        ...


class Serving(Protocol):
    """Where the wire contract is served: a port of our own, or the worker's application."""

    async def start(self) -> int:
        """The port to announce."""
        ...

    async def aclose(self) -> None: ...


class RegisteredInstance:
    """An `InstanceHandle`. Belongs to the event loop it was opened in."""

    def __init__(
        self,
        instance: Instance,
        document: PublishedDocument,
        membership: Membership,
        contract: Contract,
        serving: Serving,
    ) -> None:
        self._instance = instance
        self._document = document
        self._membership = membership
        self._contract = contract
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._leaving: asyncio.Task[None] | None = None
        self._draining = False
        self._lock = threading.Lock()
        self._requests = 0
        self._arrivals = 0
        self._idle = asyncio.Event()

    @classmethod
    async def join(
        cls, proposal: Instance, membership: Membership, contract: Contract, serving: Serving
    ) -> "RegisteredInstance":
        """Serve the contract, then be visible. Raises `RegistrationError`; then nothing is left behind."""
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
    def instance(self) -> Instance:
        return self._instance

    @property
    def closed(self) -> bool:
        return self._leaving is not None

    def instance_id(self) -> str:
        return self._instance.id

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._check_open()
        self._document.set_metadata(metadata)

    def set_ready(self, status: InstanceStatus | StatusWord, reason: str | None = None) -> None:
        wanted = InstanceStatus(status)
        self._check_open()
        self._in_loop(lambda: self._tell(wanted, reason))

    @contextmanager
    def busy(self) -> Iterator[None]:
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    async def drain(self, timeout: float) -> None:
        if not self.closed:
            self._begin_drain()
            with anyio.move_on_after(timeout):
                await self._quiet()
            if self._requests:
                log.warning(
                    "%s: %d requests are not done %g s after draining began",
                    self.instance_id(),
                    self._requests,
                    timeout,
                )
        await self.leave()

    def drain_on_sigterm(self, timeout: float = 30.0) -> None:
        on_sigterm(lambda: self.drain(timeout))

    async def close(self) -> None:
        self._users -= 1
        if self._users <= 0:
            await self.leave()

    def share(self) -> "RegisteredInstance":
        """One more user who will close."""
        self._users += 1
        return self

    async def leave(self) -> None:
        """Leave, whoever still uses it; returns when that is done, also if it was begun elsewhere."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(
                _leave(self._membership, self._contract, self._serving), name=f"leave {self.instance_id()}"
            )
        with anyio.CancelScope(shield=True):
            await asyncio.shield(self._leaving)

    def _tell(self, status: InstanceStatus, reason: str | None = None) -> None:
        """On the way up the worker says so first, on the way down the source: no reader sees a ready worker deny it."""
        self._check_open()
        if self._draining:
            return
        before = self._document.current
        told = replace(self._instance, status=status)
        if before.status is status is self._instance.status:
            self._document.set_status(status, reason)
            return
        if status is InstanceStatus.READY:
            self._document.set_status(status, reason)
        try:
            self._membership.update(told)
        except RegistrationError:
            if status is InstanceStatus.READY:
                status, reason = before.status, before.reason
            self._document.set_status(status, reason)
            raise
        self._document.set_status(status, reason)
        self._instance = told

    def _begin_drain(self) -> None:
        try:
            self._tell(InstanceStatus.DRAINING)
        except RegistrationError as error:  # leaving matters more than saying so beforehand
            log.warning("%s drains, but %s", self.instance_id(), error)
        self._draining = True
        self._see_requests()

    async def _quiet(self) -> None:
        seen = None
        while seen != self._arrivals or self._requests:
            seen = self._arrivals
            await self._idle.wait()
            await anyio.sleep(_SETTLE)

    def _count(self, change: int) -> None:
        with self._lock:
            self._requests += change
            self._arrivals += change > 0
        if self._draining:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._see_requests)

    def _see_requests(self) -> None:
        if self._requests:
            self._idle.clear()
        else:
            self._idle.set()

    def _check_open(self) -> None:
        if self.closed:
            raise RegistrationError(
                f"the registration of {self._instance.id!r} is closed; register_instance gives a new one"
            )

    def _in_loop(self, call: Callable[[], None]) -> None:
        if _running_loop() is self._loop:
            call()
            return
        done: Future[None] = Future()

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  # raised in the thread that called
                done.set_exception(error)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result()


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
