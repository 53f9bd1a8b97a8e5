"""Which endpoints a decision had, what left them out, their scores as columns over all endpoints, and how a tie was broken. Pure.

A pick that is recorded whole scores all of its candidates, where others score only as many as they need.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from epp.endpoints.endpoint import Column, Floats, Indices, Mask
from epp.scheduling.cached_scores import TIE_BREAK
from epp.scheduling.decision import Decision, ProfileRun

_SAME: Final = TIE_BREAK / 2
"""Totals that differ by less are equal: sums in another order than the pick's differ in their last digits."""


@dataclass(frozen=True, eq=False, slots=True)
class ScoredCandidates:
    """Columns over all endpoints of a decision.

    `left_out_by`: None for those that were scored. `scores`: by scorer of the plan, from 0 to 1; NaN: not scored, because it
    was left out or its numbers were stale. `totals`: their weighted sum. `stale`, `late`: these rank behind the others.
    `order`: the rows that were scored, the best first.
    """

    left_out_by: list[str | None]
    scores: list[Floats]
    totals: Floats
    stale: Mask
    late: Mask
    order: Indices


def candidates(decision: Decision, run: ProfileRun) -> ScoredCandidates:
    count = len(decision.endpoints)
    scored = run.published is not None
    rows = np.arange(count) if run.rows is None else run.rows
    fresh = rows if run.fresh is None else rows[run.fresh]
    if not scored:
        rows = fresh = rows[:0]
    scores = _scores(decision, run, fresh, count)
    totals = np.full(count, np.nan)
    totals[fresh] = 0.0
    for (_, weight), column in zip(run.plan.scorers, scores, strict=True):
        totals[fresh] += weight * column[fresh]
    stale, late = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    stale[rows] = True
    stale[fresh] = False
    if run.late is not None:
        late[run.late] = True
    return ScoredCandidates(
        left_out_by=left_out_by(decision, (*decision.steps, *run.steps)),
        scores=scores,
        totals=totals,
        stale=stale,
        late=late,
        order=_order(decision, rows, totals, stale, late),
    )


def left_out_by(decision: Decision, steps: Iterable[tuple[str, Indices | None]]) -> list[str | None]:
    """The step that left each endpoint out; None: none did."""
    count = len(decision.endpoints)
    found: list[str | None] = [None] * count
    left: Mask = np.ones(count, dtype=np.bool_)
    for name, rows in steps:
        if rows is None:
            continue
        kept = np.zeros(count, dtype=np.bool_)
        kept[rows] = True
        for row in np.flatnonzero(left & ~kept).tolist():
            found[row] = name
        left &= kept
    return found


def _scores(decision: Decision, run: ProfileRun, fresh: Indices, count: int) -> list[Floats]:
    columns = [np.full(count, np.nan) for _ in run.plan.scorers]
    for at, score in zip(run.plan.published, run.published or (), strict=False):
        columns[at][fresh] = _column(score, len(fresh))
    for at, score in zip(run.plan.by_request, run.scores, strict=False):
        columns[at][fresh] = _column(score, len(fresh))
    return columns


def _column(score: Any, count: int) -> Floats:
    """A scorer's answer as the sum takes it: NaN is 0, and others are clamped."""
    if isinstance(score, dict):
        column: Floats = np.zeros(count)
        for row, value in score.items():
            column[row] = value
    else:
        column = score
    return np.fmin(np.fmax(column, 0.0), 1.0)


def unreported(decision: Decision) -> Floats:
    """The requests in flight that no page showed yet, as `EndpointPool.unreported` has them."""
    numbers = decision.numbers
    beyond = numbers[Column.INFLIGHT] - numbers[Column.WAITING] - numbers[Column.RUNNING]
    found: Floats = np.fmax(beyond, numbers[Column.UNREPORTED])
    return found


def _order(decision: Decision, rows: Indices, totals: Floats, stale: Mask, late: Mask) -> Indices:
    if not len(rows):
        return rows
    in_flight = decision.numbers[Column.INFLIGHT]
    # stale ones go by what is in flight there; between equal scores, fewer in flight wins
    rank = np.where(stale, -in_flight, np.nan_to_num(totals) - in_flight * TIE_BREAK)
    return rows[np.lexsort((-rank[rows], stale[rows], late[rows]))]


def unlearnt_choice(decision: Decision, run: ProfileRun, scored: ScoredCandidates) -> int | None:
    """The row that would have been the choice without what scorers learnt; None: that changes nothing, or is not known.

    If several are equally good, it is the choice itself, else the first.
    """
    chosen = [row for row in scored.order.tolist() if run.chosen and decision.endpoints[row] is run.chosen[0]]
    if not run.unlearnt or not chosen or not run.plan.takes_best:
        return None
    rows = np.arange(len(decision.endpoints)) if run.rows is None else run.rows
    fresh = rows if run.fresh is None else rows[run.fresh]
    totals = scored.totals.copy()
    for (labels, weight), scores in zip(run.plan.scorers, scored.scores, strict=True):
        if labels in run.unlearnt:
            totals[fresh] += weight * (_column(run.unlearnt[labels], len(fresh)) - scores[fresh])
    order = _order(decision, rows, totals, scored.stale, scored.late)
    best, row = int(order[0]), chosen[0]
    alike = scored.stale[best] == scored.stale[row] and scored.late[best] == scored.late[row]
    return row if alike and totals[best] - totals[row] < _SAME else best


def tie(decision: Decision, run: ProfileRun, scored: ScoredCandidates) -> dict[str, Any] | None:
    """The choice's tie with others, as JSON; None: there was none, or its picker does not take the best."""
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
