"""The best of a pool without a look at all of it: those a scorer speaks up for, and the others from the best page on."""

from collections.abc import Sequence
from typing import Final

from epp.endpoints.endpoint import Column, EndpointPool
from epp.scheduling.cached_scores import TIE_BREAK, CachedScores, WeightedScores
from epp.scheduling.pickers.score_pickers import MaxScorePicker
from epp.scheduling.scorers.in_flight import InFlightScorer

_INFLIGHT: Final = int(Column.INFLIGHT)
_RUNNING: Final = int(Column.RUNNING)
_UNREPORTED: Final = int(Column.UNREPORTED)
_WAITING: Final = int(Column.WAITING)
_LOWEST: Final = float("-inf")


class BestEndpoint:
    """Finds the row that `picker` would choose of all scores.

    `in_flight_scorers`: in-flight scorers with their weights, which are not negative: by what is said nobody falls behind, and by
    what is in flight nobody gets ahead of where he is with nothing.
    """

    __slots__ = ("_in_flight_scorers", "_most_in_flight", "_picker")

    def __init__(
        self, picker: MaxScorePicker, in_flight_scorers: Sequence[tuple[float, InFlightScorer]]
    ) -> None:
        self._picker = picker
        self._in_flight_scorers = list(in_flight_scorers)
        self._most_in_flight = sum([weight for weight, _ in in_flight_scorers])

    def find(self, cached: CachedScores, weighted_scores: WeightedScores, pool: EndpointPool) -> int | None:
        """None: a scorer speaks of all, or too many are close to each other, so look at all."""
        if cached.best_rows is None or (sparse := _sum_sparse(cached, weighted_scores)) is None:
            return None
        published = cached.scores.item
        totals = {row: self._add_load(score, pool, row) for row, score in sparse.items()}
        best = max(totals.values(), default=_LOWEST)
        for row in cached.best_rows:
            score = published(row)
            if score + self._most_in_flight < best:  # and so are all that come after
                break
            if row not in totals:
                totals[row] = self._add_load(score, pool, row)
                best = max(best, totals[row])
        else:
            if cached.others_at_most + self._most_in_flight >= best:
                return None
        return self._picker.break_tie([row for row, total in totals.items() if total == best])

    def _add_load(self, score: float, pool: EndpointPool, row: int) -> float:
        number = pool.numbers.item
        inflight: float = number(_INFLIGHT, row)
        if self._in_flight_scorers:
            unreported: float = number(_UNREPORTED, row)  # as EndpointPool.unreported
            if inflight > unreported:
                unreported = max(unreported, inflight - number(_WAITING, row) - number(_RUNNING, row))
            for weight, scorer in self._in_flight_scorers:
                score += weight * scorer.score_of(unreported)
        return score - inflight * TIE_BREAK


def _sum_sparse(cached: CachedScores, weighted_scores: WeightedScores) -> dict[int, float] | None:
    """By row the sum of the scores; in-flight counts are not in it."""
    published = cached.scores.item
    scores: dict[int, float] = {}
    for weight, score in weighted_scores:
        if not isinstance(score, dict):
            return None
        for row, value in score.items():
            if row not in scores:
                scores[row] = published(row)
            scores[row] += weight * min(max(0.0, value), 1.0)  # max(0.0, NaN) is 0.0
    return scores
