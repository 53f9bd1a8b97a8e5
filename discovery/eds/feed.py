"""Follows one component and hands each new assignment to those who publish it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from adsum.tasks import wait_at_most
from discovery.eds.assignment import Assignment, assign
from discovery.eds.assignment_file import AssignmentFileError
from discovery.errors import DiscoveryTimeoutError
from discovery.service import SourceDiscovery
from discovery.source import ComponentKey
from discovery.watch import HealthChanges, Truth

log = logging.getLogger("discovery.eds")

_DOCUMENTS_TIMEOUT: Final = 2.0
"""Seconds that the first assignment waits for the documents of workers that are ready: a document may name the port that
serves, and after a restart Envoy must not lose a worker because its document is still on its way."""
_WRITE_AGAIN: Final = 1.0
"""Seconds after which an assignment is published again that could not be."""

Publish = Callable[[Assignment], None]
"""Makes an assignment known; raises AssignmentFileError if that fails now."""


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """`interval`: seconds between two assignments, at least. `serving_port_name`: as in the picker."""

    key: ComponentKey
    interval: float = 0.1
    serving_port_name: str | None = None


class AssignmentFeed:
    """The last assignment stays published while the source is out of reach."""

    def __init__(
        self, service: SourceDiscovery, settings: FeedSettings, publishers: Sequence[Publish]
    ) -> None:
        self._service = service
        self._settings = settings
        self._publishers = publishers
        self._published: Assignment | None = None
        self._health = HealthChanges(log.warning)
        self.first = asyncio.Event()
        """Set once an assignment is published."""

    async def once(self) -> Assignment:
        """Publish the present assignment. Raises `DiscoveryError` and AssignmentFileError."""
        async with self._service.truth(*self._settings.key) as truth:
            await self._wait_for_documents(truth)
            assignment = self._assign(truth)
            self._publish(assignment)
            return assignment

    async def run(self) -> None:
        """Until cancelled. Raises the source's final error; a source out of reach is waited for."""
        while True:
            try:
                async with self._service.truth(*self._settings.key) as truth:
                    await self._follow(truth)
            except DiscoveryTimeoutError as error:
                log.warning("%s; what is published stays; it is tried again", error)

    async def _follow(self, truth: Truth) -> None:
        await self._wait_for_documents(truth)
        with truth.subscribe() as subscription:
            while truth.error is None:
                subscription.wake.clear()
                subscription.dirty.clear()
                self._health.note(truth.health)
                again = not self._try_publish(self._assign(truth))
                await asyncio.sleep(self._settings.interval)  # what changes meanwhile goes out together
                await wait_at_most(_WRITE_AGAIN if again else None, subscription.wake)
        raise truth.error

    def _assign(self, truth: Truth) -> Assignment:
        return assign(truth.known, truth.instances, self._settings.serving_port_name)

    def _try_publish(self, assignment: Assignment) -> bool:
        try:
            self._publish(assignment)
        except AssignmentFileError as error:
            log.warning("%s; what is published stays; it is tried again", error)
            return False
        return True

    def _publish(self, assignment: Assignment) -> None:
        if assignment == self._published:
            return
        failed: AssignmentFileError | None = None
        for publish in self._publishers:
            try:
                publish(assignment)
            except AssignmentFileError as error:
                failed = error  # clients over gRPC do not wait for a full disk
        if failed is not None:
            self._published = None  # some have this one, some the one before
            raise failed
        self._log_change(assignment)
        self._published = assignment
        self.first.set()

    def _log_change(self, assignment: Assignment) -> None:
        log.info("endpoints: %d, healthy: %d", len(assignment.endpoints), assignment.healthy)
        before = self._published.without_ip if self._published is not None else ()
        if assignment.without_ip and assignment.without_ip != before:
            log.warning(
                "left out, because EDS needs IP addresses and these registered a host name: %s",
                ", ".join(assignment.without_ip[:10]),
            )

    async def _wait_for_documents(self, truth: Truth) -> None:
        with suppress(TimeoutError), truth.subscribe() as subscription:
            async with asyncio.timeout(_DOCUMENTS_TIMEOUT):
                while truth.error is None and not _is_complete(truth):
                    subscription.wake.clear()
                    await subscription.wake.wait()


def _is_complete(truth: Truth) -> bool:
    return all(i in truth.instances for i, candidate in truth.known.items() if candidate.status == "ready")
