"""Which endpoints a decision had, what left them out, and their scores, as columns over all endpoints. Pure.

A pick scores only as many endpoints as it needs. The other scores are computed here, from what it kept: by the same formulas,
from the same numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from epp.endpoints.endpoint import Column, Floats, Indices, Mask
from epp.scheduling.cached_scores import TIE_BREAK
from epp.scheduling.decision import Decision, ProfileRun


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
    for scorer, column in zip(run.plan.scorers, scores, strict=True):
        totals[fresh] += scorer.weight * column[fresh]
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
    """What left each endpoint out; None: nothing did."""
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
    for at, requests in run.plan.in_flight:
        columns[at][fresh] = requests / (requests + unreported(decision)[fresh])
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
