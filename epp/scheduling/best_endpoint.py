"""The best of a pool without a look at all of it: those a scorer speaks up for, and the others from the best page on."""

from collections.abc import Sequence
from typing import Final

from epp.endpoints.endpoint import Column, EndpointPool
from epp.scheduling.cached_scores import TIE, CachedScores, WeightedScores
from epp.scheduling.pickers.score_pickers import MaxScorePicker
from epp.scheduling.scorers.in_flight import InFlightScorer

_INFLIGHT: Final = int(Column.INFLIGHT)
_RUNNING: Final = int(Column.RUNNING)
_UNSEEN: Final = int(Column.UNSEEN)
_WAITING: Final = int(Column.WAITING)
_WORST: Final = float("-inf")


class BestEndpoint:
    """Finds the row that `picker` would choose of all scores.

    `falling`: in-flight scorers with their weights, which are not negative: by what is said nobody falls behind, and by
    what is in flight nobody gets ahead of where he is with nothing.
    """

    __slots__ = ("_falling", "_most", "_picker")

    def __init__(self, picker: MaxScorePicker, falling: Sequence[tuple[float, InFlightScorer]]) -> None:
        self._picker = picker
        self._falling = list(falling)
        self._most = sum([weight for weight, _ in falling])

    def row(self, cached: CachedScores, said: WeightedScores, pool: EndpointPool) -> int | None:
        """None: a scorer speaks of all, or too many are close to each other, so look at all."""
        if cached.order is None or (spoken := _spoken_for(cached, said)) is None:
            return None
        published = cached.scores.item
        totals = {row: self._by_load(score, pool, row) for row, score in spoken.items()}
        best = max(totals.values(), default=_WORST)
        for row in cached.order:
            score = published(row)
            if score + self._most < best:  # and so are all that come after
                break
            if row not in totals:
                totals[row] = self._by_load(score, pool, row)
                best = max(best, totals[row])
        else:
            if cached.rest + self._most >= best:
                return None
        return self._picker.one_of([row for row, total in totals.items() if total == best])

    def _by_load(self, score: float, pool: EndpointPool, row: int) -> float:
        number = pool.numbers.item
        inflight: float = number(_INFLIGHT, row)
        if self._falling:
            sent: float = number(_UNSEEN, row)  # as EndpointPool.sent
            if inflight > sent:
                sent = max(sent, inflight - number(_WAITING, row) - number(_RUNNING, row))
            for weight, scorer in self._falling:
                score += weight * scorer.worth(sent)
        return score - inflight * TIE


def _spoken_for(cached: CachedScores, said: WeightedScores) -> dict[int, float] | None:
    """By row the sum of the scores; in-flight counts are not in it."""
    published = cached.scores.item
    scores: dict[int, float] = {}
    for weight, score in said:
        if not isinstance(score, dict):
            return None
        for row, value in score.items():
            if row not in scores:
                scores[row] = published(row)
            scores[row] += weight * min(max(0.0, value), 1.0)  # max(0.0, NaN) is 0.0
    return scores
