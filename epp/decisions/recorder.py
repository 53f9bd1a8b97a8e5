"""Says how much is noted of each pick, and gives its record to all that read it: metrics, spans and the ring. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from adsum.tracing.span import Span
from epp.decisions.ring import DecisionRing
from epp.endpoints.endpoint import Endpoint
from epp.request.control_headers import RECORD
from epp.scheduling.decision import Decision
from epp.scheduling.pick import Pick

WHOLE_A_SECOND: Final = 5
"""Picks of each second that are noted whole without anybody asking for it: they cost some 15 % more than others."""
_ASKED_A_SECOND: Final = 50
"""Further ones whose clients ask for it: a client shall not make every pick dear."""

RecordReader = Callable[[Decision], None]


class PickRecorder:
    """Notes the first picks of a second whole, those whose trace is recorded, those whose client asks for it by the header
    RECORD, and those whose request id an operator asked for. The others are noted in short, for the ring.

    `ring` None: no decisions are kept, and what is not noted whole costs nothing. `readers` get what was noted whole, before
    what only they need is forgotten. `clock`: measures plugins, in seconds.
    """

    def __init__(
        self,
        ring: DecisionRing | None,
        readers: Sequence[RecordReader],
        clock: Callable[[], float],
        whole_a_second: int = WHOLE_A_SECOND,
    ) -> None:
        self._ring = ring
        # no method: every pick would pay for a call more
        self.keep: Callable[[Pick, tuple[Endpoint, ...], float], None] = (
            _forget if ring is None else ring.add_pick
        )
        self._readers = list(readers)
        self._clock = clock
        self._whole_a_second = whole_a_second
        self._next_second = float("-inf")
        self._left = self._asked = 0

    def begin(self, headers: Mapping[str, str], now: float, span: Span | None) -> Decision | None:
        if now >= self._next_second:
            self._begin_second(now)
        if self._left > 0:
            self._left -= 1
        elif span is None and (self._ring is None or not self._is_asked_for(headers, self._ring)):
            return None
        decision = Decision(now)
        decision.whole = True
        decision.clock = self._clock
        decision.span = span
        return decision

    def looks_again(self, now: float) -> bool:
        """Whether filters may run again to name whom they left out: that costs as much as a pick, so it is bounded."""
        if now >= self._next_second:
            self._begin_second(now)
        self._asked -= 1
        return self._asked >= 0

    def _begin_second(self, now: float) -> None:
        self._next_second = now + 1.0
        self._left, self._asked = self._whole_a_second, _ASKED_A_SECOND

    def _is_asked_for(self, headers: Mapping[str, str], ring: DecisionRing) -> bool:
        if RECORD in headers or (ring.asked_for and headers.get("x-request-id") in ring.asked_for):
            self._asked -= 1
            return self._asked >= 0
        return False

    def note(self, now: float) -> Decision | None:
        return None if self._ring is None else Decision(now)

    def add(self, decision: Decision) -> None:
        if decision.whole:
            self._read(decision)
        if self._ring is not None:
            self._ring.add(decision)

    def noted(self, decision: Decision) -> None:
        if decision.whole:
            self._read(decision)

    def _read(self, decision: Decision) -> None:
        for read in self._readers:
            read(decision)
        decision.forget_calls()


def _forget(pick: Pick, endpoints: tuple[Endpoint, ...], now: float) -> None:
    """No decisions are kept."""
