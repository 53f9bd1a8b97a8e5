"""What to ask the API server next, and when, given all that went wrong so far. Pure: time is passed in."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from discovery.kubernetes.refusal import ApiRefusal
from discovery.kubernetes.timings import Timings
from discovery.kubernetes.wire import is_older

_STARTING: Final = 2
"""Failures in a row that may be a starting server's: it refuses rights until it knows the Roles."""
_CONFIRMED: Final = 2
"""Consistent lists in a row that must be older than what we know until we believe that time went back."""


class Ask(Enum):
    """LIST: consistent, whatever it costs. LIST_SINCE: from the server's cache, not older than what we know."""

    LIST = "list"
    LIST_SINCE = "list not older"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class Lost:
    """Contact is lost; `code`: the HTTP status that says so, None when nothing answered."""

    reason: str
    code: int | None = None


class Recovery:
    """The rules of client-go's Reflector, and those that it lacks: a backoff that only two minutes of healthy stream
    reset, and doubt when versions go backwards.
    """

    def __init__(self, timings: Timings) -> None:
        self.ask = Ask.LIST
        self.version = ""
        self.wait_until = float("-inf")
        self._timings = timings
        self._failures = 0
        self._gone = False
        self._internal_errors = 0
        self._forbidden = 0
        self._older = 0
        self._away_since: float | None = None
        self._knocked = self._in_vain = False
        self._starting = 0
        self._relist_at = float("inf")

    @property
    def relist_at(self) -> float:
        """When everything is listed again though nothing is wrong: it heals what a server lost."""
        return self._relist_at

    @property
    def knock(self) -> bool:
        """Whether to look, while waiting, if a connection can be had again."""
        return self._away_since is not None and not self._in_vain

    def reached(self, now: float) -> None:
        """A connection can be had again: ask at once. Once, until something is answered: something else may listen."""
        if self._away_since is not None and now - self._away_since >= self._timings.away:
            self._starting = _STARTING
        self._knocked, self.wait_until = True, now

    def answered(self) -> None:
        """The head of an answer came, whatever it says."""
        self._away_since, self._knocked, self._in_vain = None, False, False

    def look_again(self, now: float) -> None:
        """A watch comes next, unless it is time to list."""
        if self.ask is Ask.WATCH and now >= self._relist_at:
            self.ask = Ask.LIST

    def accept(self, version: str, now: float) -> Lost | None:
        """A list of that version came. It counts, unless it is older than what we know: that is a loss."""
        if is_older(version, self.version) and not self._believe(now):
            return Lost(
                f"the server's list (version {version}) is older than what it told before ({self.version})"
            )
        self._older = self._forbidden = 0
        self.ask, self.version, self.wait_until = Ask.WATCH, version, now
        self._relist_at = now + self._timings.uniform(*self._timings.relist)
        return None

    def healthy(self) -> None:
        """One stream lived long enough: the next failure is a first one."""
        self._failures, self._gone, self._internal_errors = 0, False, 0

    def ended(self, now: float, lived: float, *, empty: bool) -> Lost | None:
        """A watch ended as watches do; one that ended at once and brought nothing is a failure."""
        if lived < self._timings.short_watch and empty:
            return self.failed("the watch ended as soon as it began", now)
        pause = self._timings.uniform(0, self._timings.rewatch)
        self.wait_until = now + max(pause, self._timings.short_watch - lived)
        return None

    def unreachable(self, reason: str, now: float) -> Lost:
        """No connection could be made."""
        self._in_vain |= self._knocked
        self._starting = 0
        self._away_since = now if self._away_since is None else self._away_since
        return self.failed(reason, now)

    def failed(self, reason: str, now: float, *, relist: bool = False, code: int | None = None) -> Lost:
        """Anything that a pause may heal. `relist`: what we know may be wrong by now."""
        if relist and self.ask is Ask.WATCH:
            self.ask = Ask.LIST_SINCE
        self.wait_until = now + self._delay()
        return Lost(reason, code)

    def expired(self, now: float, *, consistent: bool = False) -> Lost | None:
        """Our version is too old, or from another history (`consistent`): list at once, the first time."""
        self.ask = Ask.LIST_SINCE if self.ask is Ask.WATCH and not consistent else Ask.LIST
        if self._gone:
            return self.failed(f"the server does not know version {self.version} any more", now)
        self._gone, self.wait_until = True, now
        return None

    def refused(self, refusal: ApiRefusal, now: float) -> Lost | None:
        """The server said no; None when that is nothing to worry about."""
        if self.ask is Ask.LIST_SINCE and (refusal.code == 410 or refusal.too_large):
            self.ask, self.wait_until = Ask.LIST, now
            return None
        if refusal.code == 410:
            return self.expired(now)
        if refusal.too_large and self.ask is Ask.WATCH:
            return self.expired(now, consistent=True)
        self._forbidden = self._forbidden + 1 if refusal.code in (403, 404) else 0
        if self._forbidden > _STARTING:
            first, last = self._timings.backoff
            self.wait_until = now + self._timings.uniform(max(first, last / 2), last)
            return Lost(refusal.text, refusal.code)
        lost = self.failed(refusal.text, now, relist=self._must_relist(refusal), code=refusal.code)
        if refusal.wait is not None:
            self.wait_until = max(self.wait_until, now + refusal.wait)
        return lost

    def _must_relist(self, refusal: ApiRefusal) -> bool:
        if refusal.code in (401, 403, 404, 429):
            return False
        if refusal.code == 500:
            self._internal_errors += 1
            return self._internal_errors > 1
        return True

    def _believe(self, now: float) -> bool:
        """Whether an older list is the truth: etcd was restored. A stale replica's is not."""
        self._older += self.ask is Ask.LIST
        self.ask, self.wait_until = Ask.LIST, now + self._delay()
        return self._older >= _CONFIRMED

    def _delay(self) -> float:
        first, last = self._timings.backoff
        if self._starting:
            self._starting -= 1
            return self._timings.uniform(first / 2, first)
        delay = min(last, first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self._timings.uniform(delay / 2, delay)
