"""Logs when requests of a priority begin to wait, and when that is over. It has no clock."""

import logging
from collections.abc import Callable
from typing import Final

from epp.request.inference_request import InferenceRequest
from epp.request.rejection import Rejection
from epp.scheduling.waiting import Dequeued, QueueObserver

log = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds without a request that waits after which it is over: a pool that is just full would log several lines a second."""


class _Spell:
    """A time in which requests of a priority waited. `ends`: how many left the queue, by how."""

    __slots__ = ("began_at", "ended_at", "ends", "longest", "turned_away", "waiting")

    def __init__(self, now: float) -> None:
        self.began_at = self.ended_at = now
        self.waiting = 0
        self.longest = 0.0
        self.ends: dict[Dequeued, int] = {}
        self.turned_away = 0

    def describe(self) -> str:
        counts = [(words, self.ends.get(how, 0)) for how, words in _WORDS.items()]
        counts.append((_TURNED_AWAY, self.turned_away))
        said = ", ".join(f"{count} {words}" for words, count in counts if count)
        return f"it took {self.ended_at - self.began_at:.1f} s, the longest wait was {self.longest:.1f} s; {said}"


_WORDS: Final = {
    Dequeued.DISPATCHED: "dispatched",
    Dequeued.ABANDONED: "abandoned by their clients",
    Dequeued.REFUSED: "refused",
    Dequeued.EXPIRED: "expired",
    Dequeued.NO_ENDPOINTS: "expired without an endpoint",
}
_TURNED_AWAY: Final = "turned away by a full queue"


class BandLog:
    """A `QueueObserver` in front of another one. `why` says what requests wait for, `wake` is called when some begin to.

    `enabled`: flow control is on. Priorities are the operator's, so their number is bounded.
    """

    def __init__(self, observer: QueueObserver, why: Callable[[], str]) -> None:
        self.enabled = False
        self.wake: Callable[[], None] = _no_wake
        self._observer = observer
        self._why = why
        self._spells: dict[int, _Spell] = {}

    def queued(self, request: InferenceRequest, now: float) -> None:
        spell = self._spells.get(request.priority)
        if spell is None and self.enabled:
            spell = self._spells[request.priority] = _Spell(now)
            log.info("requests of priority %d wait: %s", request.priority, self._why())
            self.wake()
        if spell is not None:
            spell.waiting += 1
        self._observer.queued(request, now)

    def dequeued(self, request: InferenceRequest, how: Dequeued, waited: float, now: float) -> None:
        spell = self._spells.get(request.priority)
        if spell is not None:
            spell.waiting -= 1
            spell.ended_at = now
            spell.longest = max(spell.longest, waited)
            spell.ends[how] = spell.ends.get(how, 0) + 1
        self._observer.dequeued(request, how, waited, now)

    def turned_away(self, request: InferenceRequest, rejection: Rejection, now: float) -> None:
        spell = self._spells.get(request.priority)
        if spell is not None:
            spell.turned_away += 1
        self._observer.turned_away(request, rejection, now)

    def end_spells(self, now: float) -> bool:
        """Log those that are over; whether there are others, so that it is to be called again."""
        for priority, spell in list(self._spells.items()):
            if spell.waiting <= 0 and now - spell.ended_at >= _QUIET:
                del self._spells[priority]
                log.info("requests of priority %d wait no more: %s", priority, spell.describe())
        return bool(self._spells)


def _no_wake() -> None:
    """The default `wake`: nobody calls `end_spells`."""
