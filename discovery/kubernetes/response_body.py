"""Collects the body of one answer as its bytes arrive: a list, a watch or an error. Pure: time is passed in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from discovery.kubernetes.timings import Timings

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


@dataclass(frozen=True, slots=True)
class ListPages:
    """The objects of a list's pages so far, and the token that asks for the next page."""

    objects: tuple[Any, ...] = ()
    continue_token: str = ""


NO_PAGES: Final = ListPages()


class ListBody:
    """One page of a list; `pages`: those before it."""

    def __init__(self, pages: ListPages) -> None:
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
