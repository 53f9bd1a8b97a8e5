"""Shows a batch on stderr: its progress, a bar on a terminal, else a line now and then; and the errors among its answers."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol, TextIO

from dispatcher.broker.contract.message import Result

INTERVAL = 5.0
"""Seconds between two plain lines."""
UNCHANGED_INTERVAL = 60.0
"""Seconds between two plain lines without progress in between."""


class Progress(Protocol):
    """Shows how many of how many requests are done."""

    def update(self, what: str, done: int, total: int) -> None:
        """`what`: submitted or answered."""

    def hint(self, text: str) -> None:
        """Show a line of text."""


class PlainProgress:
    """A line every few seconds, and one when all are done."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock() + INTERVAL
        self._printed = ("", 0)

    def update(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        again = UNCHANGED_INTERVAL - INTERVAL if (what, done) == self._printed else 0.0
        if done == total or now >= self._next + again:
            self._next = now + INTERVAL
            self._printed = (what, done)
            print(f"{done} of {total} {what}", file=self._stream, flush=True)

    def hint(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class _BarProgress:
    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def update(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what)
        self._bars.update(self._tasks[what], completed=done, total=total)

    def hint(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A bar if stderr is a terminal and rich is installed, else plain lines."""
    stream = sys.stderr
    if stream.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars
        except ModuleNotFoundError:
            pass
        else:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            with Bars(*columns, console=Console(file=stream)) as bars:
                yield _BarProgress(bars)
                return
    yield PlainProgress(stream)


MAX_KINDS: Final = 5
"""Kinds of errors that are named; the others are counted."""
MAX_MESSAGE: Final = 120
"""Characters of an error message."""


@dataclass(slots=True)
class _FailureKind:
    """`first`: the custom_id of one of them, so that the user can look it up."""

    name: str
    first: str
    count: int = 0


class FailureSummary:
    """Errors by kind. A kind is a status and an error code, shown with the message of its first error."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int], _FailureKind] = {}

    def add(self, custom_id: str, result: Result) -> None:
        if result.error_code is None and result.status_code < 400:
            return
        key = (result.error_code or "", result.status_code)
        kind = self._kinds.setdefault(key, _FailureKind(_name(result), custom_id))
        kind.count += 1

    @property
    def total(self) -> int:
        return sum(kind.count for kind in self._kinds.values())

    def __str__(self) -> str:
        if not self._kinds:
            return "no errors"
        kinds = sorted(self._kinds.values(), key=lambda kind: -kind.count)
        shown = [f"{kind.count} x {kind.name}, as custom_id {kind.first!r:.80}" for kind in kinds[:MAX_KINDS]]
        if rest := sum(kind.count for kind in kinds[MAX_KINDS:]):
            shown.append(f"{rest} of other kinds")
        return f"{self.total} error{'s' * (self.total > 1)}: {'; '.join(shown)}"


def _name(result: Result) -> str:
    status = _status(result.status_code)
    if result.error_code is None:
        return status
    message = "".join(one if one.isprintable() else " " for one in result.error_message[:MAX_MESSAGE])
    return " ".join(part for part in (result.error_code, status, f"({message})" if message else "") if part)


def _status(code: int) -> str:
    if not code:
        return ""
    try:
        return f"HTTP {code} {HTTPStatus(code).phrase}"
    except ValueError:
        return f"HTTP {code}"
