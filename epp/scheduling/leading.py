"""The best of a pool without a look at all of it: those who lead by what they publish, and those a scorer speaks up for."""

from typing import Final

from epp.endpoint import Column, EndpointPool
from epp.scheduling.pickers import MaxScorePicker
from epp.scheduling.standing import TIE, Said, Standing

_INFLIGHT: Final = int(Column.INFLIGHT)
_WORST: Final = float("-inf")


def leader(standing: Standing, said: Said, pool: EndpointPool, picker: MaxScorePicker) -> int | None:
    """The row that `picker` would choose of all scores; None: many lead, or a scorer speaks of all, so look at all.

    Weights are not negative, so that nobody falls behind by what is said.
    """
    scores = _of_note(standing, said)
    if scores is None:
        return None
    inflight = pool.numbers[_INFLIGHT].item
    best = _WORST
    rows: list[int] = []
    for row, score in scores.items():
        total = score - inflight(row) * TIE
        if total > best:
            best, rows = total, [row]
        elif total == best:
            rows.append(row)
    return picker.one_of(rows)


def _of_note(standing: Standing, said: Said) -> dict[int, float] | None:
    """By row the sum of the scores; in-flight counts are not in it."""
    if standing.leaders is None:
        return None
    published = standing.scores.item
    scores = {row: published(row) for row in standing.leaders}
    for weight, score in said:
        if not isinstance(score, dict):
            return None
        for row, value in score.items():
            if row not in scores:
                scores[row] = published(row)
            scores[row] += weight * min(max(0.0, value), 1.0)  # max(0.0, NaN) is 0.0
    return scores
