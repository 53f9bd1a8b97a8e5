"""Keeps a copy of the objects of one resource by LIST, then WATCH: a state machine without I/O.

`Reflector.next_step` says what to send. The answer's headers, bytes and end, and the passing of time go in; events for
the copy come out. The rules are those of client-go's Reflector and of the Kubernetes API concepts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from discovery.kubernetes.api.refusal import decode_status, parse_refusal
from discovery.kubernetes.api.timings import Timings
from discovery.kubernetes.reflector.decoding import (
    BookmarkEvent,
    ErrorEvent,
    ObjectEvent,
    Page,
    ResourceDecoder,
    is_older,
)
from discovery.kubernetes.reflector.recovery import (
    NextRequest,
    ObjectDeleted,
    ObjectsListed,
    ObjectUpdated,
    Recovery,
    ReflectorEvent,
    SyncLost,
    SyncRestored,
)

T = TypeVar("T")


LINE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one watch event; a slice of 1,000 endpoints, the most that the API allows, makes 0.3 MB."""
LIST_LIMIT: Final = 256 * 1024 * 1024
"""Bytes of one list; 100,000 pods make 31 MB."""
_ERROR_LIMIT: Final = 64 * 1024


class LineTooLongError(ValueError):
    """More bytes than the limit without the end of the line."""


class LineSplitter:
    """Splits at b"\\n" and nothing else: `str.splitlines` would also split at U+0085, which JSON text may hold.

    Bytes after the last line end are never a line: a stream that breaks off leaves half of one.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their line ends; empty ones are left out."""
        lines: list[bytes] = []
        # or a long line in small chunks would be searched from its start each time
        searched = len(self._rest)
        self._rest += chunk
        start = 0
        while (end := self._rest.find(b"\n", max(start, searched))) >= 0:
            line = bytes(self._rest[start:end])
            start = end + 1
            self._check(len(line))
            if line and not line.isspace():
                lines.append(line)
        del self._rest[:start]
        self._check(len(self._rest))
        return lines

    def _check(self, length: int) -> None:
        if length > self._limit:
            raise LineTooLongError(f"a line of more than {self._limit} bytes")


class ErrorBody:
    """The body of an error status, or of an answer that is not JSON."""

    def __init__(self, status: int, headers: Mapping[str, str], content_type: str) -> None:
        self.status = status
        self.headers = headers
        self.content_type = content_type
        self.body = bytearray()

    def add(self, chunk: bytes) -> bool:
        """Always True: bytes beyond the size of any Status are dropped, since the HTTP status says enough."""
        self.body += chunk[: _ERROR_LIMIT - len(self.body)]
        return True


NO_PAGES: Final[Page[Any]] = Page((), "", "")


class ListBody:
    """One page of a list; `pages`: those before it."""

    def __init__(self, pages: Page[Any]) -> None:
        self.pages = pages
        self.body = bytearray()

    def add(self, chunk: bytes) -> bool:
        """False when the list is too long."""
        self.body += chunk
        return len(self.body) <= LIST_LIMIT


class WatchBody:
    """One watch stream. At `deadline` its silence means that the peer is dead."""

    def __init__(self, now: float, deadline: float, timings: Timings) -> None:
        self.opened_at = now
        self.lines = LineSplitter()
        self.deadline = deadline
        self.has_events = False
        self._latest_deadline = deadline
        self._silence_factor, self._bookmark_interval = timings.bookmark_silence
        self._bookmarks: list[float] = []

    def event_received(self, now: float, *, bookmark: bool = False) -> None:
        self.has_events = True
        if bookmark:
            if self._bookmarks:
                self._bookmark_interval = max(self._bookmark_interval, now - self._bookmarks[-1])
            self._bookmarks = [*self._bookmarks[-1:], now]
        # The API concepts promise neither bookmarks nor their interval. Two of them show that this server sends them,
        # and how often; before that silence means nothing.
        if len(self._bookmarks) == 2:
            silence = self._silence_factor * self._bookmark_interval
            self.deadline = min(self._latest_deadline, now + silence)


@dataclass(frozen=True, slots=True)
class Get:
    """Send GET for the objects with this query."""

    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Wait:
    """Send nothing until then. `probe_connection`: meanwhile try to connect, and call `connection_possible`."""

    until: float
    probe_connection: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """No request is out. `pages`: those of a list that goes on; else empty."""

    pages: Page[Any] = NO_PAGES


@dataclass(frozen=True, slots=True)
class Requested:
    """A GET is out, and its headers have not arrived."""

    pages: Page[Any]


_PAGE_SIZE: Final = "500"
"""Objects of one page: as client-go and kubectl ask for (`--chunk-size`)."""

Step: TypeAlias = Get | Wait
ReflectorState: TypeAlias = Idle | Requested | ListBody | WatchBody | ErrorBody


_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Reflector(Generic[T]):
    """After each `Get` call `headers_received`, then `data_received` until `finished`, `eof_received` or `deadline`.

        Idle ──next_step: Get──► Requested ──headers_received──► ListBody     200, a list was asked for
         ▲ ▲                        │                            WatchBody    200, a watch was asked for
         │ └─────request_failed─────┘                            ErrorBody    anything else
         │                                                           │
         └───── eof_received, request_failed, enough received ───────┘

    `next_step` in Idle returns Wait until `Recovery.wait_until`, then Get: the next page of a list that goes on, else
    what `Recovery.next_request` says. The copy is out of sync from SyncLost until any other event.
    `selection`: the query parameters that select objects, such as `labelSelector`.
    """

    def __init__(self, selection: Mapping[str, str], decoder: ResourceDecoder[T], timings: Timings) -> None:
        self.deadline = float("inf")
        self._selection = dict(selection)
        self._decoder = decoder
        self._timings = timings
        self._recovery = Recovery(timings)
        self._paging: dict[str, str] = {}
        """The query parameter that asks for pages, once a list was too long."""
        self._state: ReflectorState = Idle()
        self._last_event: ReflectorEvent[T] | None = None

    @property
    def finished(self) -> bool:
        """The rest of the answer is of no use: close the connection."""
        return isinstance(self._state, Idle)

    @property
    def timer_at(self) -> float | None:
        """When to call `timer_expired` if no bytes arrive."""
        if isinstance(self._last_event, SyncLost) and isinstance(self._state, WatchBody):
            return self._state.opened_at + self._timings.short_watch
        return None

    def next_step(self, now: float) -> Step:
        pages = self._state.pages if isinstance(self._state, Idle) else NO_PAGES
        self._recovery.relist_if_due(now)
        if now < self._recovery.wait_until:
            return Wait(self._recovery.wait_until, self._recovery.probe_connection)
        self._state = Requested(pages)
        self.deadline = now + self._timings.list_deadline
        params = self._selection
        if pages.continue_token:
            return Get(params | self._paging | {"continue": pages.continue_token})
        version = self._recovery.resource_version
        # No limit: with a resourceVersion it would keep the server from answering out of its watch cache (client-go turns
        # paging off for that reason), and the list of one selection is small (the slices of 10,000 pods are 3 MB). Whole
        # Pods are larger: a list that is too long is asked for in pages from then on.
        # Nor a streaming list (KEP-3157, sendInitialEvents): it saves the server memory in lists of hundreds of megabytes.
        match self._recovery.next_request:
            case NextRequest.LIST:
                return Get(params | self._paging)
            case NextRequest.LIST_NOT_OLDER:
                since = {"resourceVersion": version, "resourceVersionMatch": "NotOlderThan"}
                return Get(params | self._paging | since)
        seconds = self._watch_seconds(now)
        self.deadline = now + seconds + self._timings.watch_slack
        # Bookmarks (KEP-956) advance our version while our slices do not change, or it would expire
        watch = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        return Get(params | watch | {"resourceVersion": version})

    def headers_received(self, status: int, headers: Mapping[str, str], now: float) -> None:
        """Choose how the body is read; one that is no list or watch must end within `Timings.header_deadline`."""
        self._recovery.headers_received()
        content_type = headers.get("Content-Type", "application/json").partition(";")[0].strip()
        if status != 200 or not content_type.endswith("json"):
            self.deadline = min(self.deadline, now + self._timings.header_deadline)
            self._state = ErrorBody(status, headers, content_type)
        elif self._recovery.next_request is NextRequest.WATCH:
            self._state = WatchBody(now, self.deadline, self._timings)
        else:
            self._state = ListBody(self._state.pages if isinstance(self._state, Requested) else NO_PAGES)

    def data_received(self, chunk: bytes, now: float) -> list[ReflectorEvent[T]]:
        """`chunk` may begin and end anywhere in the body."""
        match self._state:
            case WatchBody() as watch:
                return self._watch_data(watch, chunk, now)
            case ListBody() | ErrorBody() as body if not body.add(chunk):
                self._paging = {"limit": _PAGE_SIZE}
                return self._relist(f"an answer of more than {len(body.body)} bytes", now)
        return []

    def timer_expired(self, now: float) -> list[SyncRestored]:
        """A watch that the server has not ended by now is in order, even if nothing has happened to be sent."""
        due = self.timer_at
        return self._restored() if due is not None and now >= due else []

    def eof_received(self, now: float) -> list[ReflectorEvent[T]]:
        """The body has ended, and is complete as far as HTTP can tell."""
        match self._state:
            case WatchBody() as watch:
                lived = self._note_lifetime(watch, now)
                return self._finish(self._recovery.watch_ended(now, lived, empty=not watch.has_events))
            case ListBody() as body:
                return self._list_complete(body, now)
            case ErrorBody() as body:
                return self._error_complete(body, now)
        return []

    def connection_possible(self, now: float) -> None:
        """During a Wait: a connection could be made."""
        self._recovery.connection_possible(now)

    def request_failed(
        self, reason: str, now: float, *, connect_failed: bool = False
    ) -> list[ReflectorEvent[T]]:
        """No answer came, it broke off, or `deadline` has passed. `connect_failed`: there was not even a connection."""
        if isinstance(self._state, WatchBody):
            self._note_lifetime(self._state, now)
        if isinstance(self._state, ErrorBody):
            return self._error_complete(self._state, now)
        if connect_failed:
            return self._finish(self._recovery.connect_failed(reason, now))
        return self._finish(self._recovery.request_failed(reason, now))

    def _watch_seconds(self, now: float) -> int:
        # Not beyond the next list, but never so short that the end counts as a failure
        wanted = min(self._timings.uniform(*self._timings.watch_timeout), self._recovery.relist_at - now)
        return max(1, math.ceil(max(wanted, 2 * self._timings.short_watch)))

    def _note_lifetime(self, watch: WatchBody, now: float) -> float:
        lived = now - watch.opened_at
        if lived >= self._timings.backoff_reset:
            self._recovery.reset_backoff()
        return lived

    def _watch_data(self, watch: WatchBody, chunk: bytes, now: float) -> list[ReflectorEvent[T]]:
        self._note_lifetime(watch, now)
        events: list[ReflectorEvent[T]] = []
        try:
            for line in watch.lines.feed(chunk):
                events += self._watch_event(watch, line, now)
                if self.finished:
                    return events
        except (*_UNDECODABLE, LineTooLongError) as error:
            return events + self._relist(f"the watch sent something that is no event: {error}", now)
        self.deadline = watch.deadline
        return events or [*(self._restored() if watch.has_events else ())]

    def _watch_event(self, watch: WatchBody, line: bytes, now: float) -> list[ReflectorEvent[T]]:
        match self._decoder.event(line):
            case ErrorEvent(status):
                return self._finish(self._recovery.request_refused(parse_refusal(status.code, status), now))
            case BookmarkEvent(bookmark):
                if not self._advance_version(bookmark.metadata.resource_version):
                    return self._version_regressed(now)
                watch.event_received(now, bookmark=True)
                return []
            case ObjectEvent(name, version, changed):
                if not name:
                    raise msgspec.ValidationError("an object without a name")
                if not self._advance_version(version):
                    return self._version_regressed(now)
                watch.event_received(now)
                return self._emit(ObjectDeleted(name) if changed is None else ObjectUpdated(changed))

    def _advance_version(self, version: str) -> bool:
        """False for a version that is older than the last: events of one watch come in the order of their versions."""
        if is_older(version, self._recovery.resource_version):
            return False
        self._recovery.resource_version = version or self._recovery.resource_version
        return True

    def _version_regressed(self, now: float) -> list[ReflectorEvent[T]]:
        return self._finish(self._recovery.version_expired(now, consistent=True))

    def _list_complete(self, body: ListBody, now: float) -> list[ReflectorEvent[T]]:
        try:
            page = self._decoder.page(bytes(body.body))
        except _UNDECODABLE as error:
            return self._relist(f"the list cannot be decoded: {error}", now)
        if not page.resource_version:
            return self._relist("the list has no resourceVersion", now)
        objects = (*body.pages.objects, *page.objects)
        if page.continue_token:
            self._state = Idle(replace(page, objects=objects))
            return []
        lost = self._recovery.list_received(page.resource_version, now)
        if lost is not None:
            return self._finish(lost)
        self._decoder.retain(objects)
        return self._finish(ObjectsListed(objects))

    def _error_complete(self, body: ErrorBody, now: float) -> list[ReflectorEvent[T]]:
        if body.status == 200:
            return self._relist(
                f"HTTP 200 with {body.content_type}, expected JSON: the server is no Kubernetes API server, "
                "or a proxy answers in its place",
                now,
            )
        status = decode_status(body.body)
        refusal = parse_refusal(body.status, status, body.headers)
        return self._finish(self._recovery.request_refused(refusal, now))

    def _relist(self, reason: str, now: float) -> list[ReflectorEvent[T]]:
        """The answer cannot be used, and an event may be in it: the watch cannot go on from the last version."""
        return self._finish(self._recovery.request_failed(reason, now, relist=True))

    def _restored(self) -> list[SyncRestored]:
        if not isinstance(self._last_event, SyncLost):
            return []
        self._last_event = restored = SyncRestored()
        return [restored]

    def _finish(self, event: ObjectsListed[T] | SyncLost | None) -> list[ReflectorEvent[T]]:
        """Drops the rest of the answer, and the earlier pages of its list: a list whose page failed starts again."""
        self._state = Idle()
        return [] if event is None else self._emit(event)

    def _emit(self, event: ReflectorEvent[T]) -> list[ReflectorEvent[T]]:
        self._last_event = event
        return [event]
