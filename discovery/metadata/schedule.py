"""When a worker is asked for its document again, and whether it is asked to hold the answer. Time is passed in."""

import math
import random
from typing import Final

_FIRST_RETRY: Final = 0.05
_LAST_RETRY: Final = 5.0
_HOLD_FAILURES: Final = 2
_HOLD_AGAIN: Final = 60.0
"""Seconds for which a worker that cannot hold a GET is polled before it is asked to hold one again."""
_BURST: Final = 10
_SPACING: Final = 0.2


class Pace:
    """One worker's. `now` is seconds on any clock that only goes forward, pauses are seconds.

    `poll`: between two GETs of a worker that does not hold them.

    GETs that fail because they are to be held are counted apart: a worker that answers all others is well.
    """

    def __init__(self, poll: float = 2.0) -> None:
        self._poll = poll
        self.failures = 0
        self._hold_failures = 0
        self._hold_after = -math.inf
        self._tokens = float(_BURST)
        self._counted_at = math.inf

    def may_hold(self, now: float) -> bool:
        return self.failures == 0 and now >= self._hold_after

    def admit(self, now: float) -> float:
        """The pause before a question that nothing else delays: ten are free, then one each 0.2 s is."""
        refilled = max(0.0, now - self._counted_at) / _SPACING
        self._tokens = min(float(_BURST), self._tokens + refilled) - 1
        self._counted_at = now
        return max(0.0, -self._tokens * _SPACING)

    def next_hold(self, now: float) -> float:
        """The pause before the next question to a worker that just answered and can be asked to hold."""
        return 0.0 if self.may_hold(now) else self.next_poll()

    def answered(self) -> None:
        self.failures = 0

    def failed(self, *, unreachable: bool) -> float:
        """Nothing usable came; the pause is full jitter over 0.05 s doubling to 5 s.

        Unreachable twice in a row was no matter of holding: the worker is gone, and may hold once it is back.
        """
        self.failures += 1
        if unreachable and self.failures > 1:
            self.forgive()
        return random.uniform(0, min(_LAST_RETRY, _FIRST_RETRY * 2 ** min(self.failures, 10)))

    def held(self) -> None:
        """The worker held a GET, or had something new to say."""
        self._hold_failures = 0

    def hold_failed(self, now: float) -> None:
        """A GET that was to be held failed, or came back early with nothing new: no more of them after two."""
        self._hold_failures += 1
        if self._hold_failures >= _HOLD_FAILURES:
            self.hold_refused(now)

    def hold_refused(self, now: float) -> None:
        """The worker did not promise to hold."""
        self._hold_after = now + _HOLD_AGAIN * random.uniform(0.9, 1.1)

    def forgive(self) -> None:
        """Whatever kept it from holding is over: it came back, or stopped draining."""
        self._hold_failures = 0
        self._hold_after = -math.inf

    def next_poll(self) -> float:
        return self._poll * random.uniform(0.9, 1.1)
