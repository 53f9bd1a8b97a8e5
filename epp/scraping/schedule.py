"""Decides when each metrics page is scraped: often for endpoints in use, seldom for idle ones. Pure.

The load of an idle endpoint does not change, so its page can wait: 100 idle workers take 0.03 cores in place of 0.3
(benchmarks/README.md: scraping). A request to an idle endpoint wakes it, so its numbers are fresh when they begin to matter.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import Final

_JITTER: Final = 0.1
"""The share of its interval by which a scrape may be late: half of it is random, half aligns it with others."""
_MAX_DOUBLINGS: Final = 16
_FIRST_WITHIN: Final = 0.05
"""Seconds within which a new endpoint is scraped first, if it comes alone, whatever the interval."""
_BATCH: Final = 8
"""Scrapes that start together: to wake the process for each one costs twice as much. More would delay picks."""
_PATIENCE: Final = 0.1
"""Seconds in which a page is expected: two of the looks that an endpoint in use gets."""
_MOST_PATIENCE: Final = 1.0
_REMEMBERED: Final = 16
"""The last pages whose durations count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeIntervals:
    """Seconds between two scrapes: `interval` for an endpoint in use, `idle_interval` for others.

    An endpoint is in use while it has requests in flight or its page shows any, and for `linger` seconds after. At most
    `max_per_second` scrapes are started for all endpoints together: with many endpoints all intervals grow, which leaves
    time for picks. After errors the interval doubles, up to `backoff`.
    """

    interval: float = 0.05
    idle_interval: float = 0.6
    linger: float = 1.0
    max_per_second: float = 2000.0
    backoff: float = 2.0

    @classmethod
    def fixed(cls, interval: float) -> "ScrapeIntervals":
        """One interval for all endpoints, in use or not."""
        return cls(interval=interval, idle_interval=interval, backoff=max(2.0, interval))


class ScrapeSchedule:
    """The schedule of all endpoints together."""

    def __init__(self, intervals: ScrapeIntervals, rng: random.Random) -> None:
        self.intervals = intervals
        self.rng = rng
        self.endpoints = 0
        self.in_use = 0
        self.unscraped = 0
        """Endpoints that were not scraped yet."""

    def add(self) -> "EndpointSchedule":
        """Add an endpoint; it is not in use yet."""
        self.endpoints += 1
        return EndpointSchedule(self)

    def stretch_factor(self) -> float:
        """The factor by which all intervals grow to respect `max_per_second`, at least 1."""
        return max(1.0, self._wanted_per_second() / self.intervals.max_per_second)

    def align(self, moment: float, interval: float) -> float:
        """The nearest moment at which other scrapes start too."""
        # the time in which _BATCH scrapes are due, but never more than the jitter that an interval may have
        step = min(_BATCH / min(self._wanted_per_second(), self.intervals.max_per_second), interval * _JITTER)
        return round(moment / step) * step

    def _wanted_per_second(self) -> float:
        """The scrapes per second that the intervals of all endpoints add up to."""
        intervals = self.intervals
        return self.in_use / intervals.interval + (self.endpoints - self.in_use) / intervals.idle_interval


class EndpointSchedule:
    """The schedule of one endpoint; all times in seconds."""

    def __init__(self, schedule: ScrapeSchedule) -> None:
        self._schedule = schedule
        self._is_unscraped = False
        self._used_at = float("-inf")
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)
        self.patience = _PATIENCE
        """Seconds in which the answer to a scrape is expected: more where pages take long."""
        self.in_use = False
        self.failures = 0
        """Failed scrapes in a row."""

    @property
    def can_wake(self) -> bool:
        """Whether it would be scraped sooner if it were in use."""
        intervals = self._schedule.intervals
        return not self.in_use and intervals.idle_interval > intervals.interval

    def page_took(self, seconds: float) -> float:
        """A page has come. Returns how much of its time counts for the next scrape: not all if that was unexpected."""
        counted = min(seconds, self.patience) if self._durations else seconds
        self._durations.append(seconds)
        # the slowest but one: a process that was stopped once is not slow
        slow = sorted(self._durations)[-2:][0]
        self.patience = min(max(_PATIENCE, 2.0 * slow), _MOST_PATIENCE)
        return counted

    def remove(self) -> None:
        """End its schedule: it counts no longer."""
        self._set_in_use(in_use=False)
        self._set_unscraped(is_unscraped=False)
        self._schedule.endpoints -= 1

    def mark_used(self, now: float) -> None:
        """A request was sent to the endpoint."""
        self._used_at = now
        self._set_in_use(in_use=True)

    def succeed(self, now: float, *, in_use: bool) -> None:
        """A scrape succeeded. `in_use`: whether the endpoint has any requests."""
        self.failures = 0
        self._finish(now, in_use)

    def fail(self, now: float, *, in_use: bool) -> None:
        """A scrape failed. `in_use`: as in `succeed`, but only as far as this picker knows: there is no page to tell."""
        self.failures += 1
        self._finish(now, in_use)

    def first_delay(self) -> float:
        """Seconds until the first scrape: none, or a place in line if many endpoints come together."""
        schedule, intervals = self._schedule, self._schedule.intervals
        # all workers of a pool come together when the picker starts
        before = schedule.unscraped / intervals.max_per_second
        self._set_unscraped(is_unscraped=True)
        return before + schedule.rng.random() * min(intervals.interval / 2, _FIRST_WITHIN)

    def wake_delay(self) -> float:
        """Seconds until the scrape of an endpoint that was just used: random, and late enough for its page to show that."""
        return self._interval() * self._schedule.rng.uniform(0.5, 1.0)

    def next_at(self, now: float, took: float) -> float:
        """When to scrape again, if the last scrape took `took`. A slow page is requested at most half of the time."""
        schedule, pause = self._schedule, self._interval()
        if self.failures:
            intervals = schedule.intervals
            pause = max(
                pause, min(intervals.interval * 2.0 ** min(self.failures, _MAX_DOUBLINGS), intervals.backoff)
            )
        drawn = pause * schedule.rng.uniform(1.0 - _JITTER / 2, 1.0 + _JITTER / 2)
        return max(schedule.align(now - took + drawn, pause), now + took)

    def period(self, took: float) -> float:
        """The longest time from a scrape that took `took` to the end of the next one."""
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
