"""One watch of the fake API server: initial events, changes, bookmarks, its end."""

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tests.kubernetes.fake.calls import Call, json_line
from tests.kubernetes.fake.kinds import typed
from tests.kubernetes.fake.rv_log import Object, RvLog
from tests.kubernetes.fake.validation import ListOptions


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: between bookmarks, and the `longest` life of a watch whatever the client asks for."""

    bookmark_period: float = 60.0
    longest: float | None = None


class Watch:
    """One open watch: the version up to which it has sent, and when its next bookmark is due."""

    def __init__(self, log: RvLog, call: Call, options: ListOptions, version: int, limits: Limits) -> None:
        self._log = log
        self._call, self._selector = call, options.selector
        self._bookmarks = options.bookmarks
        self._cursor = self._started = version
        self._wake = asyncio.Event()
        now = asyncio.get_running_loop().time()
        asked = options.timeout or random.uniform(1800, 3600)
        self._end = now + min(asked, limits.longest or asked)
        self._period = limits.bookmark_period
        self._bookmark_at = now + self._period
        self._last_bookmark_at = self._end - 2.0

    def initial(self) -> list[bytes]:
        """All objects as ADDED, each with its own old version, then the bookmark that ends the initial events."""
        self._cursor = self._started = self._log.rv
        found = self._log.objects(self._call.resource, self._call.namespace, self._selector)
        lines = [self._line("ADDED", obj) for obj in found]
        return [*lines, self._bookmark({"k8s.io/initial-events-end": "true"})] if self._bookmarks else lines

    def end(self) -> None:
        """Cleanly, now."""
        self._end = 0.0
        self._wake.set()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        with self._log.listening(self._wake.set):
            while loop.time() < self._end:
                self._wake.clear()
                for line in self._changes():
                    yield line
                if self._bookmark_due(loop.time()):
                    yield self._bookmark({})
                await self._until_something_is_due(loop.time())

    def _changes(self) -> list[bytes]:
        changes = list(self._log.changes_after(self._cursor, self._call.resource, self._call.namespace))
        self._cursor = max(self._cursor, self._log.rv)
        events = (change.event(self._selector) for change in changes)
        return [self._line(*event) for event in events if event is not None]

    def _bookmark_due(self, now: float) -> bool:
        if now < min(self._bookmark_at, self._last_bookmark_at):
            return False
        if now >= self._last_bookmark_at:
            self._last_bookmark_at = float("inf")
        self._bookmark_at = now + self._period
        moved = self._log.rv > self._started  # an idle watch gets none: cacher.go, cache_watcher.go
        return self._bookmarks and moved and self._cursor <= self._log.rv

    async def _until_something_is_due(self, now: float) -> None:
        due = min(self._end, self._bookmark_at, self._last_bookmark_at)
        try:
            async with asyncio.timeout_at(due):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _line(self, kind: str, obj: Object) -> bytes:
        return json_line({"type": kind, "object": typed(self._call.resource, obj)})

    def _bookmark(self, annotations: dict[str, str]) -> bytes:
        meta: Object = {"resourceVersion": str(self._cursor)}
        if annotations:
            meta["annotations"] = annotations
        empty = {"metadata": meta}
        if self._call.resource == "endpointslices":
            empty |= {"addressType": "", "endpoints": None, "ports": None}  # type: ignore[dict-item]  # JSON null
        return self._line("BOOKMARK", empty)
