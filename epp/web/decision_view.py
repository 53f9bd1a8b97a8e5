"""The last decisions as the page's list shows them: in short, with the scores of the best endpoints of some of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import msgspec

from epp.decisions.document import describe, state_of
from epp.decisions.ring import DecisionRing
from epp.scheduling.decision import NOT_YET, Decision

_SHOWN: Final = 12
_BEST: Final = 3
"""Endpoints of each decision whose scores are shown."""
_SCORING_TIME: Final = 0.005
"""Seconds of processor time in one turn after which no more scores are computed: of many endpoints, that takes a while."""


class DecisionView:
    """`topic` is one of a LiveFeed. All else of a decision is at /debug/decisions, which the page asks for."""

    def __init__(
        self,
        ring: DecisionRing | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._ring = ring
        self._clock = clock
        self._wall_clock = wall_clock
        self._scores: dict[int, Any] = {}
        """By sequence, of those that were shown last."""

    def topic(self) -> bytes:
        """The newest first; null: decisions are not recorded."""
        if self._ring is None:
            return b"null"
        shown = list(islice(self._ring.newest(), _SHOWN))
        now, wall = self._clock(), self._wall_clock()
        self._score(shown, now)
        rows = [self._row(one, wall - (now - _decided_at(one))) for one in shown]
        document = {"recorded": self._ring.recorded, "capacity": self._ring.most, "decisions": rows}
        return msgspec.json.encode(document)

    def _score(self, shown: list[Decision], now: float) -> None:
        kept = {one.sequence: self._scores.get(one.sequence) for one in shown}
        stop_at = time.thread_time() + _SCORING_TIME
        for one in shown:
            if kept[one.sequence] is None:
                kept[one.sequence] = _best(describe(one, now, float, _BEST))
                if time.thread_time() >= stop_at:
                    break
        self._scores = kept

    def _row(self, decision: Decision, at: float) -> dict[str, Any]:
        chosen, answered = decision.chosen, decision.responded_at != NOT_YET
        return {
            "sequence": decision.sequence,
            "at": round(at, 3),
            "id": decision.request_id,
            "model": decision.model,
            "choice": chosen[0].id if chosen else None,
            "endpoints": len(decision.endpoints),
            "waited": round(decision.waited, 3) if decision.queued else None,
            "state": state_of(decision),
            "status": decision.status or decision.refused_status or None,
            "time_to_headers": round(decision.responded_at - decision.at, 4) if answered else None,
            "refusal": decision.refused_message or decision.refused_code or None,
            "scores": self._scores.get(decision.sequence),
        }


def decisions_of_all(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One such document of those of several processes."""
    rows = sorted([row for one in told for row in one["decisions"]], key=itemgetter("sequence"), reverse=True)
    recorded, capacity = [sum(one[name] for one in told) for name in ("recorded", "capacity")]
    return {"recorded": recorded, "capacity": capacity, "decisions": rows[:_SHOWN]}


def _decided_at(decision: Decision) -> float:
    """The order of the list; the request may have come long before, and waited."""
    return decision.at if decision.picked_at == NOT_YET else decision.picked_at


def _best(described: dict[str, Any]) -> dict[str, Any]:
    """The profile that decided: its scorers, and what each added to the sums of the best endpoints."""
    primary = [one for one in described["profiles"] if one["name"] == described["profile"]]
    if not primary:
        return {"scorers": [], "weights": [], "best": []}
    scorers = primary[0]["scorers"]
    return {
        "scorers": [one["name"] for one in scorers],
        "weights": [one["weight"] for one in scorers],
        "best": [
            {
                "id": one["id"],
                "chosen": one["chosen"],
                "scores": [one["scores"][scorer["name"]] for scorer in scorers],
            }
            for one in primary[0]["candidates"][:_BEST]
        ],
    }
