"""How a tie for the best endpoint was broken. Pure."""

from typing import Any, Final

import numpy as np

from epp.decisions.scored_candidates import ScoredCandidates
from epp.endpoints.endpoint import Column, Mask
from epp.scheduling.cached_scores import TIE_BREAK
from epp.scheduling.decision import Decision, ProfileRun

_SAME: Final = TIE_BREAK / 2
"""Totals that differ by less are equal: sums in another order than the pick's differ in their last digits."""


def tie(decision: Decision, run: ProfileRun, scored: ScoredCandidates) -> dict[str, Any] | None:
    """Of the choice with others, as JSON; None: there was none, or its picker does not take the best."""
    chosen = [row for row in scored.order.tolist() if run.chosen and decision.endpoints[row] is run.chosen[0]]
    if not chosen or not run.plan.takes_best:
        return None
    [row] = chosen
    in_flight = decision.numbers[Column.INFLIGHT]
    scores = np.where(scored.stale, -in_flight, scored.totals)
    equal: Mask = np.zeros(len(scores), dtype=np.bool_)
    equal[scored.order] = True
    equal &= (scored.stale == scored.stale[row]) & (scored.late == scored.late[row])
    equal &= np.abs(scores - scores[row]) < _SAME
    fewest = equal & (in_flight <= in_flight[row])
    if np.count_nonzero(equal) < 2:
        return None
    return {
        "endpoints": int(np.count_nonzero(equal)),
        "fewest_in_flight": int(np.count_nonzero(fewest)),
        "broken_by": "inflight" if np.count_nonzero(fewest) == 1 else "chance",
    }
