"""The record of one endpoint's answers, whether it stalls, and whether it is ejected. Pure."""

from collections.abc import Hashable
from enum import StrEnum
from itertools import islice
from typing import Final

from epp.endpoints.endpoint import Endpoint
from epp.outliers.settings import Failure, OutlierSettings

_PATIENCE: Final = 3.0
"""An answer is overdue after so many times the slowest one lately."""
_WINDOW: Final = 60.0
"""Seconds for which the slowest answer counts, at least; twice as long at most."""


class Unanswered:
    """The requests to one endpoint whose answers have not begun, in the order in which they were sent.

    Streamed and whole answers are kept apart: the first begin at once, the others when the last token is there.
    """

    def __init__(self) -> None:
        self._sent: tuple[dict[Hashable, float], dict[Hashable, float]] = ({}, {})
        self._latest = [float("-inf"), float("-inf")]

    def sent(self, request: Hashable, now: float, *, streamed: bool) -> None:
        self._sent[streamed][request] = now

    def over(self, request: Hashable, *, streamed: bool, answered: bool) -> float | None:
        """When it was sent; None: unknown."""
        at = self._sent[streamed].pop(request, None)
        if answered and at is not None:
            self._latest[streamed] = max(self._latest[streamed], at)
        return at

    @property
    def none(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._sent[False] and not self._sent[True]

    def latest_answered(self, *, streamed: bool) -> float:
        """When the latest of the answered requests was sent; -inf: none was answered."""
        return self._latest[streamed]

    def since(self, count: int, *, streamed: bool) -> float | None:
        """Since when at least `count` requests have been without an answer; None: fewer are."""
        return next(islice(self._sent[streamed].values(), count - 1, None), None)


class AnswerTimes:
    """How long the slowest answer of a pool took to begin, lately."""

    def __init__(self) -> None:
        self._current = [0.0, 0.0]
        self._before = [0.0, 0.0]
        self._turned_at = float("-inf")

    def observe(self, took: float, now: float, *, streamed: bool) -> None:
        if now - self._turned_at > _WINDOW:
            self._before, self._current = self._current, [0.0, 0.0]
            self._turned_at = now
        self._current[streamed] = max(self._current[streamed], took)

    def patience(self, least: float, *, streamed: bool) -> float:
        """Seconds after which an answer is overdue."""
        return max(least, _PATIENCE * max(self._current[streamed], self._before[streamed]))


class OutlierState(StrEnum):
    """SERVING ─► EJECTED ─► PROBING ─► TRIAL ─► SERVING; a failed trial is another ejection.

    SUSPECT: it does not answer while others do. It is SERVING again with its first answer, EJECTED after longer silence, and
    on TRIAL if nobody waits for it any more. PROBING: its pause is over, and it is asked whether it answers. TRIAL: it gets
    one request at a time until it answers one.
    """

    SERVING = "serving"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    PROBING = "probing"
    TRIAL = "trial"


class Cause(StrEnum):
    """Why an endpoint was ejected."""

    CONSECUTIVE_5XX = "consecutive_5xx"
    LOCAL_ORIGIN = "consecutive_local_origin_failure"
    FAILURE_PERCENTAGE = "failure_percentage"
    STALLED = "stalled"
    TRIAL = "trial"


_MAX_EJECTIONS: Final = 1_000


class OutlierRecord:
    """Counts of one endpoint. `ejections`: in short succession; `until`: the time at which its ejection, or the wait for the
    next probe, is over; `alive_since`: nothing but its answers has been in doubt since then."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.state = OutlierState.SERVING
        self.cause: Cause | None = None
        self.until = 0.0
        self.alive_since = float("-inf")
        self.ejections = 0
        self.errors_in_row = 0
        self.failures_in_row = 0
        self.answers = 0
        """The last ones, as many as make a percentage; failures included."""
        self.recent = 0
        """A bit for each of them, 1 for a failure; the last one is the lowest."""
        self.shared: frozenset[object] = frozenset()
        """The common mark of all requests that failed in a row, or before the ejection: a fairness id, a prompt."""
        self.trial: object | None = None
        """The request that it got on trial."""
        self.unanswered = Unanswered()

    def count(self, status: int, failure: Failure | None, keys: frozenset[object], volume: int) -> None:
        """One request is answered; `failure`: by the data plane in its place. `keys`: what it may share with others.

        `volume`: answers that make a percentage.
        """
        failed = failure is not None or status >= 500
        self.answers = min(self.answers + 1, volume)
        self.recent = (self.recent << 1 | failed) & ((1 << volume) - 1)
        if failed:
            self.shared = self.shared & keys if self.errors_in_row or self.failures_in_row else keys
        if failure is not None:
            self.failures_in_row += 1
        elif status >= 500:
            self.errors_in_row += 1
            self.failures_in_row = 0
        else:
            self.errors_in_row = self.failures_in_row = 0

    def fault(self, settings: OutlierSettings) -> Cause | None:
        """Why its last answers suffice to eject it."""
        if 0 < settings.consecutive_5xx <= self.errors_in_row:
            return Cause.CONSECUTIVE_5XX
        if 0 < settings.consecutive_local_origin_failure <= self.failures_in_row:
            return Cause.LOCAL_ORIGIN
        return None

    @property
    def failure_percentage(self) -> float:
        return 100.0 * self.recent.bit_count() / self.answers if self.answers else 0.0

    def eject(self, cause: Cause, now: float, settings: OutlierSettings) -> float:
        """Returns the seconds of the pause."""
        pause = settings.pause(self.ejections)
        self.state, self.cause, self.until = OutlierState.EJECTED, cause, now + pause
        self.ejections = min(self.ejections + 1, _MAX_EJECTIONS)
        shared = self.shared
        self.clear()
        self.shared = shared
        return pause

    def acquit(self, key: object, now: float) -> bool:
        """All failures that ejected it had `key`, which fails elsewhere too: its pause is over. False: not all had."""
        if self.state is not OutlierState.EJECTED or key not in self.shared:
            return False
        self.until = now
        self.ejections -= 1
        self.shared = frozenset()
        return True

    def recover(self) -> None:
        self.state, self.cause, self.trial = OutlierState.SERVING, None, None
        self.clear()

    def clear(self) -> None:
        """Forget what was counted."""
        self.errors_in_row = self.failures_in_row = 0
        self.shared = frozenset()
        self.trial = None
        self.forget_percentage()

    def forget_percentage(self) -> None:
        self.answers = self.recent = 0

    def end_interval(self) -> None:
        """A while without ejection makes the next one shorter, as in Envoy."""
        if self.state is OutlierState.SERVING and self.ejections:
            self.ejections -= 1
