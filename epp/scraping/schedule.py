"""How often each metrics page is looked at: often where requests are, seldom where none are. Pure."""

import random
from dataclasses import dataclass
from typing import Final

_JITTER: Final = 0.1
"""By what share of its interval a look may be late: half of that by chance, half to begin with others."""
_MAX_DOUBLINGS: Final = 16
_FIRST_WITHIN: Final = 0.05
"""Seconds within which somebody new is looked at who comes alone, however seldom the others are."""
_BATCH: Final = 8
"""Looks that begin together: a process that is woken for each pays twice. A pick may wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeIntervals:
    """Times in seconds. `interval` is between two looks at an endpoint in use, `idle_interval` at another one.

    In use is who has requests in flight, or whose page shows any, and who had until `linger` ago. `max_per_second` looks a
    second are taken in all: of many endpoints each is looked at less often, so that there is time left to
    pick. After errors the interval doubles up to `backoff`.
    """

    interval: float = 0.05
    idle_interval: float = 0.6
    linger: float = 1.0
    max_per_second: float = 2000.0
    backoff: float = 2.0

    @classmethod
    def fixed(cls, interval: float) -> "ScrapeIntervals":
        """The same for all, whether in use or not."""
        return cls(interval=interval, idle_interval=interval, backoff=max(2.0, interval))


class ScrapeSchedule:
    """The looks of all endpoints together."""

    def __init__(self, intervals: ScrapeIntervals, rng: random.Random) -> None:
        self.intervals = intervals
        self.rng = rng
        self.endpoints = 0
        self.in_use = 0
        self.unscraped = 0
        """Those who wait for their first look."""

    def add(self) -> "EndpointSchedule":
        """One more endpoint, not in use yet."""
        self.endpoints += 1
        return EndpointSchedule(self)

    def stretch_factor(self) -> float:
        """By what every interval is longer than the rhythm says, 1 or more."""
        return max(1.0, self._wanted_per_second() / self.intervals.max_per_second)

    def align(self, moment: float, interval: float) -> float:
        """The moment near that one at which others are looked at too."""
        step = min(_BATCH / min(self._wanted_per_second(), self.intervals.max_per_second), interval * _JITTER)
        return round(moment / step) * step

    def _wanted_per_second(self) -> float:
        """Looks a second that all intervals make together."""
        intervals = self.intervals
        return self.in_use / intervals.interval + (self.endpoints - self.in_use) / intervals.idle_interval


class EndpointSchedule:
    """The looks at one endpoint; `now` and what is returned in seconds."""

    __slots__ = ("_is_unscraped", "_schedule", "_used_at", "failures", "in_use")

    def __init__(self, schedule: ScrapeSchedule) -> None:
        self._schedule = schedule
        self._is_unscraped = False
        self._used_at = float("-inf")
        self.in_use = False
        self.failures = 0
        """Looks in a row that gave nothing."""

    @property
    def can_wake(self) -> bool:
        """Whether it would be looked at sooner if it were in use."""
        intervals = self._schedule.intervals
        return not self.in_use and intervals.idle_interval > intervals.interval

    def remove(self) -> None:
        """It is looked at no more."""
        self._set_in_use(in_use=False)
        self._set_unscraped(is_unscraped=False)
        self._schedule.endpoints -= 1

    def mark_used(self, now: float) -> None:
        """A request was sent there."""
        self._used_at = now
        self._set_in_use(in_use=True)

    def succeed(self, now: float, *, in_use: bool) -> None:
        """A look gave something."""
        self.failures = 0
        self._finish(now, in_use)

    def fail(self, now: float, *, in_use: bool) -> None:
        """A look gave nothing."""
        self.failures += 1
        self._finish(now, in_use)

    def first_delay(self) -> float:
        """Until the first look: at once, and where many come together one after the other."""
        schedule, intervals = self._schedule, self._schedule.intervals
        before = schedule.unscraped / intervals.max_per_second
        self._set_unscraped(is_unscraped=True)
        return before + schedule.rng.random() * min(intervals.interval / 2, _FIRST_WITHIN)

    def wake_delay(self) -> float:
        """Until the look at one that has just come into use: not before the request is there, nor all at once."""
        return self._interval() * self._schedule.rng.uniform(0.5, 1.0)

    def next_at(self, now: float, took: float) -> float:
        """When to look again; the last look took so long. A slow page is asked for at most half of the time."""
        schedule, pause = self._schedule, self._interval()
        if self.failures:
            intervals = schedule.intervals
            pause = max(
                pause, min(intervals.interval * 2.0 ** min(self.failures, _MAX_DOUBLINGS), intervals.backoff)
            )
        drawn = pause * schedule.rng.uniform(1.0 - _JITTER / 2, 1.0 + _JITTER / 2)
        return max(schedule.align(now - took + drawn, pause), now + took)

    def period(self, took: float) -> float:
        """From one look that took so long to the end of the next one, at most."""
        return max(self._interval() * (1.0 + _JITTER), 2.0 * took)

    def _finish(self, now: float, in_use: bool) -> None:
        self._set_unscraped(is_unscraped=False)
        if in_use:
            self._used_at = now
        self._set_in_use(in_use=now - self._used_at < self._schedule.intervals.linger)

    def _interval(self) -> float:
        intervals = self._schedule.intervals
        return (
            intervals.interval if self.in_use else intervals.idle_interval
        ) * self._schedule.stretch_factor()

    def _set_in_use(self, *, in_use: bool) -> None:
        self._schedule.in_use += in_use - self.in_use
        self.in_use = in_use

    def _set_unscraped(self, *, is_unscraped: bool) -> None:
        self._schedule.unscraped += is_unscraped - self._is_unscraped
        self._is_unscraped = is_unscraped
