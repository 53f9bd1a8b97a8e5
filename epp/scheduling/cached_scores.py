"""Caches the part of the scores that depends only on what workers publish, once for each state of the pool.

Metrics pages are read at most 20 times a second, requests come by the thousand: most requests meet a state that an
earlier one has met. A scorer that reads only published numbers (`published_only`) gives the same scores for all of them.
So a pick costs the same for 1,000 endpoints as for 100 (1.03 times, benchmarks/picking/README.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from epp.endpoints.endpoint import Column, EndpointPool, Floats, Indices
from epp.request.inference_request import InferenceRequest
from epp.scheduling.decision import KeptScores, PluginLabels, ProfileRun, kept_scores
from epp.scheduling.plugin import LearningScorer, Scorer, Scores

TIE_BREAK: Final = 1e-9
"""Subtracted for each request in flight: too small to outweigh any difference of scores, it decides between equal ones."""
_ORDERED: Final = 32
"""The best endpoints whose order is kept; a pick rarely needs more (best_endpoint.py)."""
_PARTITION_FROM: Final = 256
"""From this many endpoints on a partition before the sort is faster."""
_MAX_STATES: Final = 16
"""States that are cached at once: one for each set of candidates among the requests of the moment."""


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and its weight in the sum of scores. `labels`: given by its profile."""

    scorer: Scorer
    weight: float = 1.0
    labels: PluginLabels = ("", "", "")


WeightedScores: TypeAlias = Sequence[tuple[float, Scores]]
"""The scores of several scorers for one request, each with its weight."""


def run_scorers(
    scorers: Sequence[WeightedScorer],
    request: InferenceRequest,
    pool: EndpointPool,
    notes: ProfileRun | None = None,
) -> WeightedScores:
    if notes is None:
        return [(weighted.weight, weighted.scorer.score(request, pool)) for weighted in scorers]
    scores = [(one.weight, notes.call(one.labels, one.scorer.score, request, pool)) for one in scorers]
    for one in scorers:
        if isinstance(one.scorer, LearningScorer):
            notes.scored_unlearnt(one.labels, one.scorer.unlearnt_score(request, pool))
    return scores


def add_scores(total: Floats, weighted_scores: WeightedScores) -> Floats:
    """Add the weighted scores to `total`, in place."""
    for weight, score in weighted_scores:
        if isinstance(score, np.ndarray):
            # fmax and fmin ignore NaN: a scorer's NaN counts as 0
            bounded = np.fmax(score, 0.0)
            np.fmin(bounded, 1.0, out=bounded)
            bounded *= weight
            total += bounded
        else:
            for row, value in score.items():
                total[row] += weight * min(max(0.0, value), 1.0)  # max(0.0, NaN) is 0.0
    return total


@dataclass(slots=True)
class CachedScores:
    """The scores of the endpoints with fresh numbers, valid for pool times in [`valid_from`, `valid_until`).

    `rows`: the rows of these endpoints in the pool; None: all of them. `parts`: of which `scores` is the sum.
    """

    fresh: EndpointPool
    rows: Indices | None
    scores: Floats
    valid_from: float
    valid_until: float
    parts: WeightedScores = ()
    _kept: KeptScores | None = None
    _best: tuple[Sequence[int], float] | None = None

    def best(self) -> tuple[Sequence[int], float]:
        """The best rows of `scores`, best first, and the highest score of all others."""
        if self._best is None:
            self._best = _best_rows(self.scores)
        return self._best

    def kept(self) -> KeptScores:
        """The parts as decisions keep them."""
        if self._kept is None:
            self._kept = kept_scores(self.parts, self.scores)
        return self._kept

    def current(self, pool: EndpointPool) -> EndpointPool:
        """The endpoints of `pool` with fresh numbers, their requests in flight brought up to date."""
        if self.rows is None:
            return pool
        for column in (Column.INFLIGHT, Column.UNREPORTED):
            self.fresh.numbers[column] = pool.numbers[column, self.rows]
        return self.fresh


class ScoreCache:
    """Computes scores once for each state of a pool; again when the state changes or an endpoint's numbers become stale.

    `staleness`: seconds after which numbers are stale; None: never.
    """

    def __init__(self, scorers: Sequence[WeightedScorer], staleness: float | None) -> None:
        self._scorers = scorers
        self._staleness = staleness
        self._cached: dict[object, CachedScores] = {}

    def get(
        self, request: InferenceRequest, pool: EndpointPool, notes: ProfileRun | None = None
    ) -> CachedScores:
        """The scores at `pool.now`. Scorers get the request only because their signature has it: they must not read it."""
        state = pool.state
        if state is None:  # a subset of the pool: candidates of this request only
            return self._compute(request, pool, notes)
        cached = self._cached.get(state)
        if cached is None or not cached.valid_from <= pool.now < cached.valid_until:
            if len(self._cached) >= _MAX_STATES:
                self._cached.clear()
            cached = self._cached[state] = self._compute(request, pool, notes)
        return cached

    def _compute(
        self, request: InferenceRequest, pool: EndpointPool, notes: ProfileRun | None
    ) -> CachedScores:
        fresh, rows, valid_until = pool, None, np.inf
        if self._staleness is not None:
            stale_at = pool.stale_at(self._staleness)
            valid_until = float(stale_at.min(initial=np.inf))
            if valid_until < pool.now:
                mask = stale_at >= pool.now
                fresh, rows = pool.select(mask), mask.nonzero()[0]
                valid_until = float(stale_at.min(initial=np.inf, where=mask))
        parts = run_scorers(self._scorers, request, fresh, notes)
        scores = add_scores(np.zeros(len(fresh)), parts)
        return CachedScores(fresh, rows, scores, pool.now, valid_until, parts)


def _best_rows(scores: Floats) -> tuple[Sequence[int], float]:
    count = len(scores)
    if count > _PARTITION_FROM:
        best = scores.argpartition(count - _ORDERED - 1)[count - _ORDERED - 1 :]
        best_rows = best[scores[best].argsort()[::-1]].tolist()
    else:
        best_rows = scores.argsort()[: -_ORDERED - 2 : -1].tolist()
    return best_rows[:_ORDERED], scores.item(best_rows[_ORDERED]) if count > _ORDERED else -np.inf
