"""How far a batch is, for people: a bar on a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

INTERVAL = 5.0
"""Seconds between two plain lines."""
UNCHANGED_INTERVAL = 60.0
"""Seconds between two plain lines that say the same."""


class Progress(Protocol):
    """Told how many of how many are done."""

    def update(self, what: str, done: int, total: int) -> None:
        """`what`: submitted, answered."""

    def hint(self, text: str) -> None:
        """Something to look at, on a line of its own."""


class PlainProgress:
    """A line every few seconds, and one at the end of each part."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock() + INTERVAL
        self._printed = ("", 0)

    def update(self, what: str, done: int, total: int) -> None:
        """Print it where it is time."""
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
    """On stderr: a bar where that is a terminal and rich is installed, else plain lines."""
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
