"""Server-sent events: one rendering for all open browsers, and none while nobody looks (WHATWG HTML §9.2)."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from adsum.logs import RateLimitedLog
from adsum.tasks import cancel_and_wait

log = logging.getLogger(__name__)

MAX_READERS: Final = 32
"""Open streams. A port serves more connections than these, so that pages that stay open keep nobody else out."""
_SILENCE: Final = 15.0
"""Seconds after which a comment shows that the stream lives."""
_SEND_TIMEOUT: Final = 30.0
"""Seconds for a browser to take what was sent."""
_LONGEST: Final = 3600.0
"""Seconds after which a stream ends. The browser opens it again, and who may see it is asked anew."""
_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_BEAT: Final = b": still here\n\n"


class _Frame(NamedTuple):
    """One event as it is sent. `version` grows with each change."""

    version: int
    document: bytes
    sent_as: bytes


class LiveFeed:
    """`topics`: by event name, what returns its whole state as JSON; None means that nothing changed.

    They are called on the event loop, every `interval` seconds while somebody reads. A state that is the same as before is
    not sent again. A slow browser skips states: it gets the newest of each topic. Call `aclose` before the server waits
    for its requests: `app.on_shutdown`.
    """

    def __init__(self, topics: Mapping[str, Callable[[], bytes | None]], interval: float = 1.0) -> None:
        self.renderings = 0
        self._limited_log = RateLimitedLog(log)
        self._topics = topics
        self._interval = interval
        self._frames: dict[str, _Frame] = {}
        self._changed = asyncio.Event()
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def aclose(self, _: web.Application | None = None) -> None:
        """End the streams of all browsers, and refuse new ones. Idempotent."""
        self._closed = True
        self._announce()
        await self._stop()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """A handler of aiohttp."""
        if self._closed or self._readers >= MAX_READERS:
            text = f"{MAX_READERS} browsers are open; close one of them.\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "10"})
        answer = web.StreamResponse(headers=_HEADERS)
        self._readers += 1
        try:
            self._start()
            await answer.prepare(request)
            async with asyncio.timeout(_LONGEST):
                await self._send_all(answer)
            await answer.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            log.debug("a browser closed its stream")
        finally:
            self._readers -= 1
            if not self._readers:
                await self._stop()
        return answer

    async def _send_all(self, answer: web.StreamResponse) -> None:
        sent: dict[str, int] = {}
        while not self._closed:
            changed = self._changed
            frames = [one for one in self._frames.items() if sent.get(one[0]) != one[1].version]
            sent.update((name, frame.version) for name, frame in frames)
            async with asyncio.timeout(_SEND_TIMEOUT):
                await answer.write(b"".join(frame.sent_as for _, frame in frames) or _BEAT)
            try:
                async with asyncio.timeout(_SILENCE):
                    await changed.wait()
            except TimeoutError:
                continue

    def _start(self) -> None:
        if self._task is None:
            self._render()
            self._task = asyncio.create_task(self._run(), name="live page")

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if self._render():
                self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _render(self) -> bool:
        """Ask every topic for its state; True if one differs from what was sent before."""
        self.renderings += 1
        before = {name: frame.version for name, frame in self._frames.items()}
        for name, state in self._topics.items():
            self._render_topic(name, state)
        return before != {name: frame.version for name, frame in self._frames.items()}

    def _render_topic(self, name: str, state: Callable[[], bytes | None]) -> None:
        old = self._frames.get(name)
        try:
            document = state()
        except Exception as error:  # noqa: BLE001  # a fault of ours in one part of a page leaves the others
            self._limited_log.warning(name, "the page's %s cannot be shown: %r", name, error)
            return
        if document is None or (old is not None and old.document == document):
            return
        version = 1 if old is None else old.version + 1
        # bounded: one document of ours
        lines = b"".join(b"data: %b\n" % line for line in document.split(b"\n"))
        self._frames[name] = _Frame(version, document, b"event: %b\n%b\n" % (name.encode(), lines))


class EventTopic:
    """The newest `most` events of a program, each with its number."""

    def __init__(self, most: int) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=most)
        self._sequence = 0
        self._rendered = -1

    def append(self, **event: Any) -> None:
        self._sequence += 1
        self._events.append({"sequence": self._sequence, **event})

    def newest(self) -> list[dict[str, Any]]:
        """Return the events, the newest one first."""
        return list(reversed(self._events))

    def topic(self) -> bytes | None:
        """A topic of a LiveFeed."""
        if self._rendered == self._sequence:
            return None
        self._rendered = self._sequence
        return json.dumps(self.newest()).encode()
