"""When a worker's metadata is fetched again, and whether that GET may be held. Time is passed in."""

import math
import random
from typing import Final

_SHORTEST_RETRY: Final = 0.05
_LONGEST_RETRY: Final = 5.0
_HOLD_FAILURES: Final = 2
"""Held GETs that may fail in a row before the worker is polled: one can be a restart or a broken connection."""
_HOLD_RETRY: Final = 60.0
"""Seconds for which a worker that cannot hold a GET is polled before the next one is held."""
_BURST: Final = 10
_REFILL: Final = 0.2
"""Seconds in which the token bucket gains one GET."""


class FetchSchedule:
    """One worker's. `now` is in seconds on any monotonic clock, delays are in seconds, `poll` is between two polls.

    GETs that fail only while they are held are counted apart: a proxy that cuts idle connections, or a server that
    cannot hold, does not make a worker unhealthy that answers every plain GET.
    """

    def __init__(self, poll: float = 2.0) -> None:
        self._poll = poll
        self.failures = 0
        self._hold_failures = 0
        self._hold_after = -math.inf
        self._tokens = float(_BURST)
        self._refilled_at = math.inf

    def may_hold(self, now: float) -> bool:
        return self.failures == 0 and now >= self._hold_after

    def throttle(self, now: float) -> float:
        """Takes one token; returns the delay until it is available: ten GETs at once, then one each 0.2 s.

        Without it a worker that answers each held GET at once, with another document every time, would be asked in a
        loop without a pause.
        """
        refilled = max(0.0, now - self._refilled_at) / _REFILL
        self._tokens = min(float(_BURST), self._tokens + refilled) - 1
        self._refilled_at = now
        return max(0.0, -self._tokens * _REFILL)

    def next_hold(self, now: float) -> float:
        """The delay after a held GET: none while GETs may be held, else a poll's."""
        return 0.0 if self.may_hold(now) else self.next_poll()

    def answered(self) -> None:
        self.failures = 0

    def failed(self, *, unreachable: bool, frozen: bool = False) -> float:
        """The delay before the retry: exponential from 0.05 to 5 s, full jitter. `frozen`: the worker accepted the GET and
        did not answer in time, which was delay enough: a frozen process answers as soon as it continues.

        Many readers lose a worker at the same moment; full jitter keeps them from returning together.
        A second failure to connect shows that the worker was gone, so that what it failed to hold does not count.
        """
        self.failures += 1
        if unreachable and self.failures > 1:
            self.reset_holding()
        doublings = 1 if frozen else min(self.failures, 10)
        return random.uniform(0, min(_LONGEST_RETRY, _SHORTEST_RETRY * 2**doublings))

    def held(self) -> None:
        """The worker held a GET, or answered it early with a change."""
        self._hold_failures = 0

    def hold_failed(self, now: float) -> None:
        """A held GET failed, or returned early without a change; after two, the worker is polled."""
        self._hold_failures += 1
        if self._hold_failures >= _HOLD_FAILURES:
            self.hold_refused(now)

    def hold_refused(self, now: float) -> None:
        """The answer had no `Preference-Applied: wait`: the worker is polled."""
        self._hold_after = now + _HOLD_RETRY * random.uniform(0.9, 1.1)

    def reset_holding(self) -> None:
        """The worker restarted or stopped draining: GETs may be held again."""
        self._hold_failures = 0
        self._hold_after = -math.inf

    def next_poll(self) -> float:
        return self._poll * random.uniform(0.9, 1.1)
