"""One line in the log for what happens again and again."""

import logging
import time
from collections.abc import Callable
from typing import Final

EVERY: Final = 60.0
"""Seconds between two lines of one cause."""


class Repeated:
    """Says each cause once a minute, with how often it came meanwhile. A cause is a word of ours, never foreign text."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said_at: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def warning(self, cause: str, message: str, *arguments: object) -> None:
        now = self._clock()
        said_at = self._said_at.get(cause)
        if said_at is not None and now - said_at < EVERY:
            self._unsaid[cause] = self._unsaid.get(cause, 0) + 1
            return
        self._said_at[cause] = now
        unsaid = self._unsaid.pop(cause, 0)
        if unsaid:
            self._log.warning(f"{message}; %d times more since that was said last", *arguments, unsaid)
        else:
            self._log.warning(message, *arguments)
