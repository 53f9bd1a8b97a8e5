"""The part of the scores that only what the workers publish decides: found once for each state of the pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Column, EndpointPool, Floats, Indices
from epp.request.inference_request import InferenceRequest
from epp.scheduling.plugin import Scorer, Scores

TIE_BREAK: Final = 1e-9
"""What one request in flight costs: it decides between equal scores and between nothing else."""
_ORDERED: Final = 32
"""Endpoints up to which it is faster to take them one by one."""
_PARTITION_FROM: Final = 256
"""Endpoints from which on it is faster to find the best before they are sorted."""
_MAX_STATES: Final = 16
"""States that are kept at once: one for each set of candidates that requests of the same moment have."""


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and the weight of its scores in the sum."""

    scorer: Scorer
    weight: float = 1.0


WeightedScores: TypeAlias = Sequence[tuple[float, Scores]]
"""What some scorers said of one request, each with its weight."""


def run_scorers(
    scorers: Sequence[WeightedScorer], request: InferenceRequest, pool: EndpointPool
) -> WeightedScores:
    return [(weighted.weight, weighted.scorer.score(request, pool)) for weighted in scorers]


def add_scores(total: Floats, weighted_scores: WeightedScores) -> Floats:
    """Add the weighted scores to `total`, in place."""
    for weight, score in weighted_scores:
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

    `best_rows`: where `rows` is None, the first of the pool, best score first; all others have `others_at_most` at most.
    """

    fresh: EndpointPool
    rows: Indices | None
    scores: Floats
    valid_from: float
    valid_until: float
    best_rows: Sequence[int] | None
    others_at_most: float

    def current(self, pool: EndpointPool) -> EndpointPool:
        """Those of `pool` whose numbers are fresh, with what is in flight by now."""
        if self.rows is None:
            return pool
        for column in (Column.INFLIGHT, Column.UNREPORTED):
            self.fresh.numbers[column] = pool.numbers[column, self.rows]
        return self.fresh


class ScoreCache:
    """Keeps the cached scores of each state of a pool until it changes, or an endpoint's numbers become stale.

    `staleness` None: the age of numbers does not matter. Weights and scorers as in the profile.
    """

    __slots__ = ("_cached", "_scorers", "_staleness")

    def __init__(self, scorers: Sequence[WeightedScorer], staleness: float | None) -> None:
        self._scorers = scorers
        self._staleness = staleness
        self._cached: dict[object, CachedScores] = {}

    def get(self, request: InferenceRequest, pool: EndpointPool) -> CachedScores:
        """Those at `pool.now`; the request is shown to scorers that do not look at it."""
        state = pool.state
        if state is None:
            return self._compute(request, pool)
        cached = self._cached.get(state)
        if cached is None or not cached.valid_from <= pool.now < cached.valid_until:
            if len(self._cached) >= _MAX_STATES:
                self._cached.clear()
            cached = self._cached[state] = self._compute(request, pool)
        return cached

    def _compute(self, request: InferenceRequest, pool: EndpointPool) -> CachedScores:
        fresh, rows, valid_until = pool, None, np.inf
        if self._staleness is not None:
            mask = pool.fresh(self._staleness)
            fresh, valid_until = pool.select(mask), pool.fresh_until(self._staleness, mask)
            rows = None if fresh is pool else mask.nonzero()[0]
        scores = add_scores(np.zeros(len(fresh)), run_scorers(self._scorers, request, fresh))
        best_rows, others_at_most = (None, np.inf) if rows is not None else _best_rows(scores)
        return CachedScores(fresh, rows, scores, pool.now, valid_until, best_rows, others_at_most)


def _best_rows(scores: Floats) -> tuple[Sequence[int], float]:
    """Few rows, and the highest score of the others."""
    count = len(scores)
    if count > _PARTITION_FROM:
        best = scores.argpartition(count - _ORDERED - 1)[count - _ORDERED - 1 :]
        best_rows = best[scores[best].argsort()[::-1]].tolist()
    else:
        best_rows = scores.argsort()[: -_ORDERED - 2 : -1].tolist()
    return best_rows[:_ORDERED], scores.item(best_rows[_ORDERED]) if count > _ORDERED else -np.inf
