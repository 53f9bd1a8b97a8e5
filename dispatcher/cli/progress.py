"""Shows the progress of a batch on stderr: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

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
