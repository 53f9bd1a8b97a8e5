"""Finds the endpoint with the highest score without scoring the whole pool.

The cached scores are an upper bound. For a request, the prefix scorer adds to a few endpoints, and the in-flight scorer
adds at most its weight, which it does for an endpoint with nothing unreported. So only two groups can win: the endpoints
to which a scorer adds for this request, and the others in the order of their cached score. The walk down that order ends
at the first endpoint that could not win even with nothing in flight; none after it can. That is often the second one,
so a pick does not grow with the pool: 271 µs with 1,000 endpoints, 263 µs with 100 (benchmarks/picking/README.md).
"""

from collections.abc import Sequence
from typing import Final

from epp.endpoints.endpoint import Column, EndpointPool, Mask
from epp.scheduling.cached_scores import TIE_BREAK, CachedScores, WeightedScores
from epp.scheduling.plugin import BestPicker, InFlightReader

_INFLIGHT: Final = int(Column.INFLIGHT)
_RUNNING: Final = int(Column.RUNNING)
_UNREPORTED: Final = int(Column.UNREPORTED)
_WAITING: Final = int(Column.WAITING)
_LOWEST: Final = float("-inf")


class BestEndpoint:
    """Finds the row that `picker` would choose of all scores.

    `in_flight_scorers`: with their weights. No weight may be negative: then no scorer lowers a score, and no endpoint gains
    more than the sum of these weights by what is in flight.
    """

    def __init__(self, picker: BestPicker, in_flight_scorers: Sequence[tuple[float, InFlightReader]]) -> None:
        self._picker = picker
        self._in_flight_scorers = list(in_flight_scorers)
        self._most_in_flight = sum([weight for weight, _ in in_flight_scorers])

    def find(
        self,
        cached: CachedScores,
        weighted_scores: WeightedScores,
        pool: EndpointPool,
        late: Mask | None = None,
    ) -> int | None:
        """The row of the best endpoint that is not `late`.

        None: score all of them, since a scorer gave a whole column or too many are close.
        """
        if (sparse := _sum_sparse(cached, weighted_scores)) is None:
            return None
        best_rows, others_at_most = cached.best()
        published = cached.scores.item
        skipped = frozenset(() if late is None else late.nonzero()[0].tolist())
        totals = {
            row: self._add_load(score, pool, row) for row, score in sparse.items() if row not in skipped
        }
        best = max(totals.values(), default=_LOWEST)
        for row in best_rows:
            score = published(row)
            if score + self._most_in_flight < best:  # neither this endpoint nor any after it can win
                break
            if row not in totals and row not in skipped:
                totals[row] = self._add_load(score, pool, row)
                best = max(best, totals[row])
        else:  # all ordered endpoints were tried: one beyond them may still win
            if others_at_most + self._most_in_flight >= best:
                return None
        # in the order of the rows, as where all of them are scored: an explanation then draws the same one
        return self._picker.break_tie(sorted([row for row, total in totals.items() if total == best]))

    def _add_load(self, score: float, pool: EndpointPool, row: int) -> float:
        number = pool.numbers.item
        inflight: float = number(_INFLIGHT, row)
        if self._in_flight_scorers:
            unreported: float = number(_UNREPORTED, row)  # EndpointPool.unreported, for one row
            if inflight > unreported:
                unreported = max(unreported, inflight - number(_WAITING, row) - number(_RUNNING, row))
            for weight, scorer in self._in_flight_scorers:
                score += weight * scorer.score_of(unreported)
        return score - inflight * TIE_BREAK


def _sum_sparse(cached: CachedScores, weighted_scores: WeightedScores) -> dict[int, float] | None:
    """The scores, without the part of what is in flight, of the endpoints to which a scorer adds for this request.

    None: a scorer gave a whole column.
    """
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
