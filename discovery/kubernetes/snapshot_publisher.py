"""From a reflector's news to a source's reports: grace, contact, and the one warning when nobody is there."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from discovery.errors import ForbiddenError
from discovery.kubernetes.merge import MergedSet
from discovery.kubernetes.recovery import Lost
from discovery.kubernetes.reflector import Contact, Deleted, Listed, News, Put
from discovery.kubernetes.refusal import LIST_SLICES, explain_refusal
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.wire import EndpointSlice
from discovery.source import Report
from runtime.tasks import cancel_and_wait

_HOLD: Final = 0.005
"""Seconds of work on a list after which others may run."""

_log = logging.getLogger(__name__)


class Following:
    """Keeps the merged set of one component and reports it. `on_nobody`: what to do, once, after nobody was ready
    for `Timings.nobody` seconds.
    """

    def __init__(self, merged: MergedSet, report: Report, namespace: str, timings: Timings) -> None:
        self.on_nobody: Callable[[], Awaitable[None]] | None = None
        self._merged = merged
        self._report = report
        self._namespace = namespace
        self._timings = timings
        self._synced = False
        self._lost = False
        self._grace: asyncio.TimerHandle | None = None
        self._nobody: asyncio.TimerHandle | None = None
        self._warning: asyncio.Task[None] | None = None

    async def tell(self, news: Iterable[News]) -> None:
        """Raises ForbiddenError when the first list is refused."""
        changed = False
        for item in news:
            match item:
                case Lost():
                    if changed:
                        self._publish()
                    changed = False
                    self._lose(item)
                case Listed(slices):
                    changed |= await self._replace(slices)
                case _:
                    changed |= self._take(item)
        if changed:
            self._publish()
        self._arm_grace()

    def hear(self, contact: Contact) -> None:
        """The server is heard again, though it had nothing to tell."""
        if self._take(contact):
            self._publish()
        self._arm_grace()

    async def aclose(self) -> None:
        for timer in (self._grace, self._nobody):
            if timer is not None:
                timer.cancel()
        if self._warning is not None:
            await cancel_and_wait(self._warning)

    def _take(self, item: Put | Deleted | Contact) -> bool:
        """Whether there is something to report."""
        now = self._timings.clock()
        regained = self._regain(now)
        match item:
            case Put(found):
                return self._merged.put(found, now) or regained
            case Deleted(name):
                return self._merged.remove(name, now) or regained
            case Contact():
                return regained

    async def _replace(self, slices: tuple[EndpointSlice, ...]) -> bool:
        """As `_take`, without holding up the loop: ten thousand pods take a tenth of a second."""
        self._disarm_grace()
        now = self._timings.clock()
        changed = self._regain(now) or not self._synced
        started = time.perf_counter()
        for step in self._merged.replace(slices, now):
            changed |= step
            if time.perf_counter() - started > _HOLD:
                await asyncio.sleep(0)
                started = time.perf_counter()
        self._synced = True
        return changed

    def _lose(self, lost: Lost) -> None:
        reason = explain_refusal(lost.code, lost.reason, LIST_SLICES, self._namespace)
        if lost.code == 403 and not self._synced:
            raise ForbiddenError(reason)
        if self._synced and not self._lost:
            _log.warning("contact to the Kubernetes API is lost, the last known set stays: %s", reason)
        self._lost = True
        self._report.degraded(reason)

    def _regain(self, now: float) -> bool:
        regained, self._lost = self._lost, False
        if regained:
            self._merged.wait_anew(now)
            if self._synced:
                _log.info("the Kubernetes API is heard again")
        return regained

    def _publish(self) -> None:
        snapshot = self._merged.snapshot()
        self._report(snapshot)
        self._watch_for_nobody(empty=not snapshot.instances)

    def _arm_grace(self) -> None:
        """Pods that are missing are given up in time, but not while nobody could show them to us."""
        self._disarm_grace()
        due = self._merged.due
        if due is not None and not self._lost:
            delay = due - self._timings.clock()
            self._grace = asyncio.get_running_loop().call_later(delay, self._expire)

    def _disarm_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _expire(self) -> None:
        if self._merged.expire(self._timings.clock()):
            self._publish()
        self._arm_grace()

    def _watch_for_nobody(self, *, empty: bool) -> None:
        if not empty and self._nobody is not None:
            self._nobody.cancel()
            self._nobody = None
        elif empty and self._nobody is None:
            self._nobody = asyncio.get_running_loop().call_later(self._timings.nobody, self._warn)

    def _warn(self) -> None:
        if self.on_nobody is not None and (self._warning is None or self._warning.done()):
            self._warning = asyncio.ensure_future(self.on_nobody())
