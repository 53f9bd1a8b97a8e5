"""The part of the scores that only what the workers publish decides: found once for each state of the pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Column, EndpointPool, Floats, Indices
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import Scorer, Scores

TIE: Final = 1e-9
"""What one request in flight costs: it decides between equal scores and between nothing else."""
_FEW: Final = 32
"""Endpoints up to which it is faster to take them one by one."""
_MANY: Final = 256
"""Endpoints from which on it is faster to find the best before they are sorted."""
_KEPT: Final = 16
"""States that are kept at once: one for each set of candidates that requests of the same moment have."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """A scorer and the weight of its scores in the sum."""

    scorer: Scorer
    weight: float = 1.0


WeightedScores: TypeAlias = Sequence[tuple[float, Scores]]
"""What some scorers said of one request, each with its weight."""


def ask(scorers: Sequence[Weighted], request: InferenceRequest, pool: EndpointPool) -> WeightedScores:
    return [(weighted.weight, weighted.scorer.score(request, pool)) for weighted in scorers]


def add_scores(total: Floats, said: WeightedScores) -> Floats:
    """Add the weighted scores to `total`, in place."""
    for weight, score in said:
        if isinstance(score, np.ndarray):
            # fmax and fmin leave the other operand where one is NaN
            total += weight * np.fmin(np.fmax(score, 0.0), 1.0)
        else:
            for row, value in score.items():
                total[row] += weight * min(max(0.0, value), 1.0)  # max(0.0, NaN) is 0.0
    return total


@dataclass(frozen=True, slots=True)
class CachedScores:
    """The scores of those whose numbers are fresh. `rows`: which of the pool's they are, None: all of them.

    `order`: where `rows` is None, the first of the pool, best score first; all others have `rest` at most.
    """

    fresh: EndpointPool
    rows: Indices | None
    scores: Floats
    since: float
    until: float
    order: Sequence[int] | None
    rest: float

    def fresh_of(self, pool: EndpointPool) -> EndpointPool:
        """Those of `pool` whose numbers are fresh, with what is in flight by now."""
        if self.rows is None:
            return pool
        for column in (Column.INFLIGHT, Column.UNSEEN):
            self.fresh.numbers[column] = pool.numbers[column, self.rows]
        return self.fresh


class ScoreCache:
    """Keeps the cached scores of each state of a pool until it changes, or an endpoint's numbers become stale.

    `staleness` None: the age of numbers does not matter. Weights and scorers as in the profile.
    """

    __slots__ = ("_kept", "_scorers", "_staleness")

    def __init__(self, scorers: Sequence[Weighted], staleness: float | None) -> None:
        self._scorers = scorers
        self._staleness = staleness
        self._kept: dict[object, CachedScores] = {}

    def of(self, request: InferenceRequest, pool: EndpointPool) -> CachedScores:
        """Those at `pool.now`; the request is shown to scorers that do not look at it."""
        state = pool.state
        if state is None:
            return self._find(request, pool)
        kept = self._kept.get(state)
        if kept is None or not kept.since <= pool.now < kept.until:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            kept = self._kept[state] = self._find(request, pool)
        return kept

    def _find(self, request: InferenceRequest, pool: EndpointPool) -> CachedScores:
        fresh, rows, until = pool, None, np.inf
        if self._staleness is not None:
            mask = pool.fresh(self._staleness)
            fresh, until = pool.take(mask), pool.fresh_until(self._staleness, mask)
            rows = None if fresh is pool else mask.nonzero()[0]
        scores = add_scores(np.zeros(len(fresh)), ask(self._scorers, request, fresh))
        order, rest = (None, np.inf) if rows is not None else _best_first(scores)
        return CachedScores(fresh, rows, scores, pool.now, until, order, rest)


def _best_first(scores: Floats) -> tuple[Sequence[int], float]:
    """Few rows, and the highest score of the others."""
    count = len(scores)
    if count > _MANY:
        best = scores.argpartition(count - _FEW - 1)[count - _FEW - 1 :]
        order = best[scores[best].argsort()[::-1]].tolist()
    else:
        order = scores.argsort()[: -_FEW - 2 : -1].tolist()
    return order[:_FEW], scores.item(order[_FEW]) if count > _FEW else -np.inf
