"""The body of one answer while it comes in: a list, a watch, or a refusal. Pure: time is passed in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from discovery.kubernetes.timings import Timings
from discovery.kubernetes.wire import EndpointSlice

LINE_LIMIT: Final = 16 * 1024 * 1024


class LineTooLongError(ValueError):
    """More bytes than the limit and still no end of the line."""


class LineSplitter:
    """Splits at b"\\n" and nothing else: `str.splitlines` would also split at U+0085, which JSON text may hold.

    What follows the last line's end is never a line: a stream that breaks off leaves half of one.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their end, empty ones left out. LineTooLongError."""
        lines: list[bytes] = []
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


LIST_LIMIT: Final = 256 * 1024 * 1024
"""Bytes of one list; 100,000 pods make 31 MB."""
_REFUSAL_LIMIT: Final = 64 * 1024


class RefusedReading:
    """The answer is no, or it is not from an API server."""

    def __init__(self, status: int, headers: Mapping[str, str], kind: str) -> None:
        self.status = status
        self.headers = headers
        self.kind = kind
        self.body = bytearray()

    def add(self, chunk: bytes) -> bool:
        """What is more than a Status may be is not kept."""
        self.body += chunk[: _REFUSAL_LIMIT - len(self.body)]
        return True


@dataclass(frozen=True, slots=True)
class ListPages:
    """What the pages of a list have brought so far; `rest`: the token of the next one."""

    slices: tuple[EndpointSlice, ...] = ()
    rest: str = ""


NO_PAGES: Final = ListPages()


class ListReading:
    """One page of a list; `pages`: those before it."""

    def __init__(self, pages: ListPages) -> None:
        self.pages = pages
        self.body = bytearray()

    def add(self, chunk: bytes) -> bool:
        """False when it is too much to keep."""
        self.body += chunk
        return len(self.body) <= LIST_LIMIT


class WatchReading:
    """One watch stream. `deadline`: when its silence is a dead peer's."""

    def __init__(self, now: float, deadline: float, timings: Timings) -> None:
        self.opened_at = now
        self.lines = LineSplitter()
        self.deadline = deadline
        self.brought = False
        self._last = deadline
        self._patience, self._interval = timings.bookmarks
        self._bookmarks: list[float] = []

    def heard(self, now: float, *, bookmark: bool = False) -> None:
        """A line came. Once two bookmarks have shown their interval, their absence is a sign."""
        self.brought = True
        if bookmark:
            if self._bookmarks:
                self._interval = max(self._interval, now - self._bookmarks[-1])
            self._bookmarks = [*self._bookmarks[-1:], now]
        if len(self._bookmarks) == 2:
            self.deadline = min(self._last, now + self._patience * self._interval)
