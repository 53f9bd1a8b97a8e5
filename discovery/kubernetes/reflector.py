"""LIST, then WATCH, then LIST again when that is what it takes: a state machine without I/O.

`Reflector.next` says what to ask; the answer's head, bytes, end and the passing of time go in; news comes out. The
rules are those of client-go's Reflector and of `discovery.k8s.io/v1`; versions are advanced by every object and
bookmark. WatchList is never asked for: one Service's slices are one small list.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from discovery.kubernetes.decoding import SliceDecoder
from discovery.kubernetes.recovery import Ask, Lost, Recovery
from discovery.kubernetes.refusal import read_refusal
from discovery.kubernetes.response_body import (
    NO_PAGES,
    LineTooLongError,
    ListPages,
    ListReading,
    RefusedReading,
    WatchReading,
)
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.wire import (
    EndpointSlice,
    Failure,
    Removed,
    WatchProgress,
    decode_event,
    decode_list,
    decode_status,
    is_older,
)


@dataclass(frozen=True, slots=True)
class Get:
    """Ask for the slices with these parameters."""

    params: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask nothing before this moment; `knock`: unless a connection can be had again, which `reached` is told."""

    until: float
    knock: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """All slices there are."""

    slices: tuple[EndpointSlice, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """One slice was added or changed."""

    slice: EndpointSlice


@dataclass(frozen=True, slots=True)
class Deleted:
    """One slice is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class Contact:
    """The server is heard again, and had nothing new to say."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Between two answers. `pages`: of a list that goes on; empty after everything else."""

    pages: ListPages = NO_PAGES


@dataclass(frozen=True, slots=True)
class Requested:
    """A GET is out and its head is not in."""

    pages: ListPages


Step: TypeAlias = Get | Wait
News: TypeAlias = Listed | Put | Deleted | Contact | Lost
_SomeNews = TypeVar("_SomeNews", Contact, News)
ReflectorState: TypeAlias = Idle | Requested | ListReading | WatchReading | RefusedReading


class MalformedAnswerError(ValueError):
    """What came is not what was asked for."""


class Reflector:
    """Give it each `Get`'s answer: `opened`, then `received` until `finished`, `ended` or the `deadline`.

        Idle ──next: Get──► Requested ──opened──► ListReading     200, a list was asked for
         ▲ ▲                    │                 WatchReading    200, a watch was asked for
         │ └───────broke────────┘                 RefusedReading  anything else
         │                                            │
         └───── ended, broke, received enough ────────┘

    `next` in Idle says Wait until `Recovery.wait_until`, then Get: the next page of a list that goes on, else what
    `Recovery.ask` says: LIST and LIST_SINCE until a list is accepted, WATCH until it expires, fails or is due for a list.
    Contact is lost from a `Lost` that is told until any other news.
    """

    def __init__(self, selector: str, timings: Timings) -> None:
        self.deadline = float("inf")
        self._selector = selector
        self._timings = timings
        self._recovery = Recovery(timings)
        self._state: ReflectorState = Idle()
        self._last_news: News | None = None
        self._slices = SliceDecoder()

    @property
    def finished(self) -> bool:
        """Nothing more of this answer is wanted."""
        return isinstance(self._state, Idle)

    @property
    def tick_at(self) -> float | None:
        """When `tick` has something to say though nothing was received."""
        if isinstance(self._last_news, Lost) and isinstance(self._state, WatchReading):
            return self._state.opened_at + self._timings.short_watch
        return None

    def next(self, now: float) -> Step:
        """What to do now; a `Get` begins a new exchange."""
        pages = self._state.pages if isinstance(self._state, Idle) else NO_PAGES
        self._recovery.look_again(now)
        if now < self._recovery.wait_until:
            return Wait(self._recovery.wait_until, self._recovery.knock)
        self._state = Requested(pages)
        self.deadline = now + self._timings.list_deadline
        params = {"labelSelector": self._selector}
        if pages.rest:
            return Get(params | {"continue": pages.rest})
        version = self._recovery.version
        match self._recovery.ask:
            case Ask.LIST:
                return Get(params)
            case Ask.LIST_SINCE:
                return Get(params | {"resourceVersion": version, "resourceVersionMatch": "NotOlderThan"})
        seconds = self._watch_seconds(now)
        self.deadline = now + seconds + self._timings.watch_slack
        watch = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        return Get(params | watch | {"resourceVersion": version})

    def opened(self, status: int, headers: Mapping[str, str], now: float) -> None:
        """The head of the answer. The deadline may be nearer afterwards."""
        self._recovery.answered()
        kind = headers.get("Content-Type", "application/json").partition(";")[0].strip()
        if status != 200 or not kind.endswith("json"):
            self.deadline = min(self.deadline, now + self._timings.header_deadline)
            self._state = RefusedReading(status, headers, kind)
        elif self._recovery.ask is Ask.WATCH:
            self._state = WatchReading(now, self.deadline, self._timings)
        else:
            self._state = ListReading(self._state.pages if isinstance(self._state, Requested) else NO_PAGES)

    def received(self, chunk: bytes, now: float) -> list[News]:
        """Bytes of the body, cut anyhow."""
        match self._state:
            case WatchReading() as watch:
                return self._watched(watch, chunk, now)
            case ListReading() | RefusedReading() as body if not body.add(chunk):
                return self._failed(f"an answer of more than {len(body.body)} bytes", now)
        return []

    def tick(self, now: float) -> list[Contact]:
        """Time has passed: a stream that lives on is contact, even when it is quiet."""
        due = self.tick_at
        return self._contact() if due is not None and now >= due else []

    def ended(self, now: float) -> list[News]:
        """The body ended as it should."""
        match self._state:
            case WatchReading() as watch:
                lived = self._lived(watch, now)
                return self._end(self._recovery.ended(now, lived, empty=not watch.brought))
            case ListReading() as listed:
                return self._listed(listed, now)
            case RefusedReading() as refused:
                return self._refused(refused, now)
        return []

    def reached(self, now: float) -> None:
        """While waiting: a connection can be had again."""
        self._recovery.reached(now)

    def broke(self, reason: str, now: float, *, unreachable: bool = False) -> list[News]:
        """There was no answer (`unreachable`: nor a connection), or its body broke off, or the deadline passed."""
        if isinstance(self._state, WatchReading):
            self._lived(self._state, now)
        if isinstance(self._state, RefusedReading):
            return self._refused(self._state, now)
        if unreachable:
            return self._end(self._recovery.unreachable(reason, now))
        return self._end(self._recovery.failed(reason, now))

    def _watch_seconds(self, now: float) -> int:
        wanted = min(self._timings.uniform(*self._timings.watch), self._recovery.relist_at - now)
        return max(1, math.ceil(max(wanted, 2 * self._timings.short_watch)))

    def _lived(self, watch: WatchReading, now: float) -> float:
        lived = now - watch.opened_at
        if lived >= self._timings.healthy:
            self._recovery.healthy()
        return lived

    def _watched(self, watch: WatchReading, chunk: bytes, now: float) -> list[News]:
        self._lived(watch, now)
        news: list[News] = []
        try:
            for line in watch.lines.feed(chunk):
                news += self._event(watch, line, now)
                if self.finished:
                    return news
        except (msgspec.DecodeError, MalformedAnswerError, LineTooLongError, UnicodeDecodeError) as error:
            return news + self._failed(f"the watch brought something that is no event: {error}", now)
        self.deadline = watch.deadline
        return news or [*(self._contact() if watch.brought else ())]

    def _event(self, watch: WatchReading, line: bytes, now: float) -> list[News]:
        match decode_event(line):
            case Failure(status):
                return self._end(self._recovery.refused(read_refusal(status.code, status), now))
            case WatchProgress(bookmark):
                if not self._advanced(bookmark.metadata.resource_version):
                    return self._went_back(now)
                watch.heard(now, bookmark=True)
                return []
            case event:
                name = event.object.metadata.name
                if not name:
                    raise MalformedAnswerError("a slice without a name")
                if not self._advanced(event.object.metadata.resource_version):
                    return self._went_back(now)
                watch.heard(now)
                if isinstance(event, Removed):
                    self._slices.forget(name)
                    return self._tell(Deleted(name))
                return self._tell(Put(self._slices.decoded(event.object)))

    def _advanced(self, version: str) -> bool:
        if is_older(version, self._recovery.version):
            return False
        self._recovery.version = version or self._recovery.version
        return True

    def _went_back(self, now: float) -> list[News]:
        return self._end(self._recovery.expired(now, consistent=True))

    def _listed(self, listed: ListReading, now: float) -> list[News]:
        try:
            page = decode_list(bytes(listed.body))
            items = self._slices.listed(page.items or ())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._failed(f"the list is no EndpointSliceList: {error}", now)
        if not page.metadata.version:
            return self._failed("the list has no resourceVersion", now)
        slices = listed.pages.slices + items
        if page.metadata.rest:
            self._state = Idle(ListPages(slices, page.metadata.rest))
            return []
        lost = self._recovery.accept(page.metadata.version, now)
        if lost is not None:
            return self._end(lost)
        self._slices.keep(slices)
        return self._end(Listed(slices))

    def _refused(self, refused: RefusedReading, now: float) -> list[News]:
        if refused.status == 200:
            return self._failed(
                f"HTTP 200 with {refused.kind} where JSON was expected: this is no Kubernetes API server, "
                "or something stands before it",
                now,
            )
        status = decode_status(refused.body)
        return self._end(self._recovery.refused(read_refusal(refused.status, status, refused.headers), now))

    def _failed(self, reason: str, now: float) -> list[News]:
        """What came cannot be used: drop the connection and list."""
        return self._end(self._recovery.failed(reason, now, relist=True))

    def _contact(self) -> list[Contact]:
        return self._tell(Contact()) if isinstance(self._last_news, Lost) else []

    def _end(self, news: Listed | Lost | None) -> list[News]:
        """The answer is dealt with, and so is a list that it was a page of."""
        self._state = Idle()
        return self._tell(news)

    def _tell(self, news: _SomeNews | None) -> list[_SomeNews]:
        if news is None:
            return []
        self._last_news = news
        return [news]
