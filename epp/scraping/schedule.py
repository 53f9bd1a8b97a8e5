"""How often each metrics page is looked at: often where requests are, seldom where none are. Pure."""

import random
from dataclasses import dataclass
from typing import Final

_SLACK: Final = 0.1
"""By what share of its interval a look may be late: half of that by chance, half to begin with others."""
_DOUBLINGS: Final = 16
_FIRST: Final = 0.05
"""Seconds within which somebody new is looked at who comes alone, however seldom the others are."""
_GROUP: Final = 8
"""Looks that begin together: a process that is woken for each pays twice. A pick may wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """Times in seconds. `interval` is between two looks at an endpoint in use, `idle_interval` at another one.

    In use is who has requests in flight, or whose page shows any, and who had until `linger` ago. `most` looks a
    second are taken in all: of many endpoints each is looked at less often, so that there is time left to
    pick. After errors the interval doubles up to `backoff`.
    """

    interval: float = 0.05
    idle_interval: float = 0.6
    linger: float = 1.0
    most: float = 2000.0
    backoff: float = 2.0

    @classmethod
    def fixed(cls, interval: float) -> "Rhythm":
        """The same for all, whether in use or not."""
        return cls(interval=interval, idle_interval=interval, backoff=max(2.0, interval))


class Cadence:
    """The looks of all endpoints together."""

    def __init__(self, rhythm: Rhythm, rng: random.Random) -> None:
        self.rhythm = rhythm
        self.rng = rng
        self.members = 0
        self.in_use = 0
        self.newcomers = 0
        """Those who wait for their first look."""

    def join(self) -> "Beat":
        """One more endpoint, not in use yet."""
        self.members += 1
        return Beat(self)

    def stretch(self) -> float:
        """By what every interval is longer than the rhythm says, 1 or more."""
        return max(1.0, self._wanted() / self.rhythm.most)

    def aligned(self, moment: float, interval: float) -> float:
        """The moment near that one at which others are looked at too."""
        step = min(_GROUP / min(self._wanted(), self.rhythm.most), interval * _SLACK)
        return round(moment / step) * step

    def _wanted(self) -> float:
        """Looks a second that all intervals make together."""
        rhythm = self.rhythm
        return self.in_use / rhythm.interval + (self.members - self.in_use) / rhythm.idle_interval


class Beat:
    """The looks at one endpoint; `now` and what is returned in seconds."""

    __slots__ = ("_cadence", "_is_new", "_used_at", "failures", "in_use")

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._is_new = False
        self._used_at = float("-inf")
        self.in_use = False
        self.failures = 0
        """Looks in a row that gave nothing."""

    @property
    def can_be_woken(self) -> bool:
        """Whether it would be looked at sooner if it were in use."""
        rhythm = self._cadence.rhythm
        return not self.in_use and rhythm.idle_interval > rhythm.interval

    def leave(self) -> None:
        """It is looked at no more."""
        self._set(in_use=False)
        self._set_new(is_new=False)
        self._cadence.members -= 1

    def use(self, now: float) -> None:
        """A request was sent there."""
        self._used_at = now
        self._set(in_use=True)

    def saw(self, now: float, *, in_use: bool) -> None:
        """A look gave something."""
        self.failures = 0
        self._look(now, in_use)

    def missed(self, now: float, *, in_use: bool) -> None:
        """A look gave nothing."""
        self.failures += 1
        self._look(now, in_use)

    def first(self) -> float:
        """Until the first look: at once, and where many come together one after the other."""
        cadence, rhythm = self._cadence, self._cadence.rhythm
        before = cadence.newcomers / rhythm.most
        self._set_new(is_new=True)
        return before + cadence.rng.random() * min(rhythm.interval / 2, _FIRST)

    def soon(self) -> float:
        """Until the look at one that has just come into use: not before the request is there, nor all at once."""
        return self._interval() * self._cadence.rng.uniform(0.5, 1.0)

    def next(self, now: float, took: float) -> float:
        """When to look again; the last look took so long. A slow page is asked for at most half of the time."""
        cadence, pause = self._cadence, self._interval()
        if self.failures:
            rhythm = cadence.rhythm
            pause = max(pause, min(rhythm.interval * 2.0 ** min(self.failures, _DOUBLINGS), rhythm.backoff))
        drawn = pause * cadence.rng.uniform(1.0 - _SLACK / 2, 1.0 + _SLACK / 2)
        return max(cadence.aligned(now - took + drawn, pause), now + took)

    def period(self, took: float) -> float:
        """From one look that took so long to the end of the next one, at most."""
        return max(self._interval() * (1.0 + _SLACK), 2.0 * took)

    def _look(self, now: float, in_use: bool) -> None:
        self._set_new(is_new=False)
        if in_use:
            self._used_at = now
        self._set(in_use=now - self._used_at < self._cadence.rhythm.linger)

    def _interval(self) -> float:
        rhythm = self._cadence.rhythm
        return (rhythm.interval if self.in_use else rhythm.idle_interval) * self._cadence.stretch()

    def _set(self, *, in_use: bool) -> None:
        self._cadence.in_use += in_use - self.in_use
        self.in_use = in_use

    def _set_new(self, *, is_new: bool) -> None:
        self._cadence.newcomers += is_new - self._is_new
        self._is_new = is_new
