"""LIST, then WATCH, then LIST again when that is what it takes: a state machine without I/O.

`Reflector.next` says what to ask; the answer's head, bytes, end and the passing of time go in; news comes out. The
rules are those of client-go's Reflector and of `discovery.k8s.io/v1`; versions are advanced by every object and
bookmark. WatchList is never asked for: one Service's slices are one small list.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from discovery.kubernetes.decoding import SliceDecoder
from discovery.kubernetes.lines import LineTooLongError
from discovery.kubernetes.recovery import Ask, Lost, Recovery
from discovery.kubernetes.refusal import read_refusal
from discovery.kubernetes.response_body import ListReading, RefusedReading, WatchReading
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.versions import is_older
from discovery.kubernetes.wire import (
    EndpointSlice,
    Failure,
    Removed,
    WatchProgress,
    decode_event,
    decode_list,
    decode_status,
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


Step: TypeAlias = Get | Wait
News: TypeAlias = Listed | Put | Deleted | Contact | Lost


class MalformedAnswerError(ValueError):
    """What came is not what was asked for."""


class Reflector:
    """Give it each `Get`'s answer: `opened`, then `received` until `finished`, `ended` or the `deadline`."""

    def __init__(self, selector: str, timings: Timings) -> None:
        self.finished = False
        self.deadline = float("inf")
        self._selector = selector
        self._timings = timings
        self._recovery = Recovery(timings)
        self._reading: RefusedReading | ListReading | WatchReading | None = None
        self._slices = SliceDecoder()
        self._pages: tuple[EndpointSlice, ...] = ()
        self._rest = ""
        self._lost = False

    @property
    def tick_at(self) -> float | None:
        """When `tick` has something to say though nothing was received."""
        if self._lost and isinstance(self._reading, WatchReading):
            return self._reading.opened_at + self._timings.short_watch
        return None

    def next(self, now: float) -> Step:
        """What to do now; a `Get` begins a new exchange."""
        self._reading, self.finished = None, False
        self._recovery.look_again(now)
        if now < self._recovery.wait_until:
            return Wait(self._recovery.wait_until, self._recovery.knock)
        self.deadline = now + self._timings.list_deadline
        params = {"labelSelector": self._selector}
        if self._rest:
            return Get(params | {"continue": self._rest})
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
            self._reading = RefusedReading(status, headers, kind)
        elif self._recovery.ask is Ask.WATCH:
            self._reading = WatchReading(now, self.deadline, self._timings)
        else:
            self._reading = ListReading()

    def received(self, chunk: bytes, now: float) -> list[News]:
        """Bytes of the body, cut anyhow."""
        if isinstance(self._reading, WatchReading):
            return self._watched(self._reading, chunk, now)
        if self._reading is None or self._reading.add(chunk):
            return []
        return self._failed(f"an answer of more than {len(self._reading.body)} bytes", now)

    def tick(self, now: float) -> list[Contact]:
        """Time has passed: a stream that lives on is contact, even when it is quiet."""
        due = self.tick_at
        return self._contact() if due is not None and now >= due else []

    def ended(self, now: float) -> list[News]:
        """The body ended as it should."""
        match self._reading:
            case WatchReading() as watch:
                lived = self._lived(watch, now)
                return self._told(self._recovery.ended(now, lived, empty=not watch.brought))
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
        if isinstance(self._reading, WatchReading):
            self._lived(self._reading, now)
        if isinstance(self._reading, RefusedReading):
            return self._refused(self._reading, now)
        self._pages, self._rest = (), ""
        if unreachable:
            return self._told(self._recovery.unreachable(reason, now))
        return self._told(self._recovery.failed(reason, now))

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
                self.finished = True
                return self._told(self._recovery.refused(read_refusal(status.code, status), now))
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
                self._lost = False
                if isinstance(event, Removed):
                    self._slices.forget(name)
                    return [Deleted(name)]
                return [Put(self._slices.decoded(event.object))]

    def _advanced(self, version: str) -> bool:
        if is_older(version, self._recovery.version):
            return False
        self._recovery.version = version or self._recovery.version
        return True

    def _went_back(self, now: float) -> list[News]:
        self.finished = True
        return self._told(self._recovery.expired(now, consistent=True))

    def _listed(self, listed: ListReading, now: float) -> list[News]:
        try:
            page = decode_list(bytes(listed.body))
            items = self._slices.listed(page.items or ())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._failed(f"the list is no EndpointSliceList: {error}", now)
        if not page.metadata.version:
            return self._failed("the list has no resourceVersion", now)
        slices, self._rest = self._pages + items, page.metadata.rest
        if self._rest:
            self._pages = slices
            return []
        self._pages = ()
        lost = self._recovery.accept(page.metadata.version, now)
        if lost is not None:
            return self._told(lost)
        self._lost = False
        self._slices.keep(slices)
        return [Listed(slices)]

    def _refused(self, refused: RefusedReading, now: float) -> list[News]:
        self._pages, self._rest = (), ""
        if refused.status == 200:
            return self._failed(
                f"HTTP 200 with {refused.kind} where JSON was expected: this is no Kubernetes API server, "
                "or something stands before it",
                now,
            )
        status = decode_status(refused.body)
        return self._told(self._recovery.refused(read_refusal(refused.status, status, refused.headers), now))

    def _failed(self, reason: str, now: float) -> list[News]:
        """What came cannot be used: drop the connection and list."""
        self.finished, self._pages, self._rest = True, (), ""
        return self._told(self._recovery.failed(reason, now, relist=True))

    def _contact(self) -> list[Contact]:
        told, self._lost = self._lost, False
        return [Contact()] if told else []

    def _told(self, lost: Lost | None) -> list[News]:
        if lost is None:
            return []
        self._lost = True
        return [lost]
