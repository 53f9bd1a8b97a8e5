"""Learns what a request costs on the workers of one pool, from the times of first bytes against what was known at the picks. Pure.

The seconds to a first byte are taken to be a sum: a fixed part, and a part for each missing token, for each token ahead, for
each request there, and for each request beyond the room of the worker, less a part of the time for which what is ahead has been
computed. None of these parts is negative. The six numbers are those with the least squares of relative errors over the last
answers. An error counts as a share of the larger one of the prediction and what came, so neither an answer that took a
hundred times as long nor one that came at once weighs more than any other one that is wrong.

What a model says is used only while it is clearly better than one number for all: where headers come before a prompt is
computed, or prompts are all alike, the times tell nothing, and the constants of the configuration hold.

What other pickers learnt of the same workers counts too. One that has no answers of its own begins with the fit in the middle
of theirs. Then a fit of theirs counts, by the answers behind it, as long as it foresees the answers that came here nearly as well
as what was learnt here: so who tells what is wrong moves nothing that the own answers contradict.
"""

from collections import deque
from collections.abc import Sequence
from math import inf, log2
from operator import mul
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np

from adsum.histogram import Histogram
from epp.scheduling.peer_pick import Fit

_KEPT: Final = 400
"""Answers that are learnt from; older ones are forgotten. A multiple of what is taken in at a time."""
_APART: Final = 0.02
"""Seconds between answers that are learnt from, on average: more of them would cost time and tell no more."""
_AT_ONCE: Final = 16
"""This many may be learnt from at once: a log tells of many."""
_FEW: Final = 64
"""Answers up to which each four of them are concluded from."""
_FEWEST: Final = 12
"""Answers before which nothing is concluded."""
_EVERY: Final = 16
"""Answers between two solutions; fewer at first."""
_ROUNDS: Final = 40
_TRIES: Final = 3
"""Solutions one after the other while nothing is learnt: what an error is a share of depends on the one before."""
_BETTER: Final = 0.6
_NO_BETTER: Final = 0.8
"""The squared error, to that of one number for all, below which the model is used, and above which it is no more."""
_PRIOR_ANSWERS: Final = 20.0
"""As many answers say that a token ahead takes as long as a missing one."""
_SMALL: Final = 1e-3
_THOUSAND: Final = 1000.0
MOST_AHEAD: Final = 2.0
"""The most that a token ahead counts, in missing tokens."""
MOST_BEYOND: Final = 20_000.0
"""The most that a request beyond the room counts, in missing tokens."""
_CLOSE: Final = 0.1
"""Relative errors beyond this count by their size, not by their square: some that are large decide nothing."""
_FAR_OFF: Final = 2.0
"""A worker that is this many doublings from the middle of the pool teaches the pool nothing."""
_WILD: Final = 0.2
_WILD_TIMES: Final = 2.0
"""Nor one whose answers are this much further from its average, in doublings, than those of others."""
_OFF_SHARE: Final = 0.2
_MOST_OFF: Final = 4.0
_FIRST_SLOW: Final = 4
_LAST_SLOW: Final = 25
"""Answers that count in a worker's slowness: so many are taken to have said that it is average at first, so many at most."""
_MOST_SLOW: Final = 2.0
"""Doublings: the most by which a worker is taken to be slower, or faster, than the average."""
ERROR_BUCKETS: Final[Sequence[float]] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
"""Bounds of the share by which a prediction was wrong."""
PREDICTION_BUCKETS: Final[Sequence[float]] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
UNKNOWN: Final = -1.0
Known: TypeAlias = tuple[float, float, float, float, float]
"""Tokens missing and ahead, requests there and beyond the room, seconds for which what is ahead has been computed."""
Answer: TypeAlias = tuple[float, float, float, float, float, float, float]
"""1 and `Known` with tokens in thousands, then the seconds that it took."""
_SECONDS: Final = 6
LEARNT_NUMBERS: Final = (
    "fixed", "thousand_tokens_missing", "thousand_tokens_ahead", "request_there", "request_beyond_room",
    "second_under_way",
)  # fmt: skip
_TYPICAL: Final[Known] = (1000.0, 1000.0, 4.0, 0.0, 0.0)
"""By what they foresee of it, the fits of others are put in order."""
_NEARLY, _MARGIN = 2.0, 0.05
"""The squared error, to that of the own fit and to that of one number for all, up to which another picker's fit counts."""


class WorkerPace:
    """How far one worker's answers are from the prediction. `off`: in doublings, more than 0 is slower; `wild`: how far each of them
    is from that. `agrees`: it is like the others of its pool, so that they learn from it. `slow`: how many doublings its
    first bytes are later than predicted, over more answers and whatever it is taken for; `slowness`: how many times later than those
    of the pool's middle.
    """

    __slots__ = ("_count", "agrees", "off", "slow", "slowness", "wild")

    def __init__(self) -> None:
        self.off = self.wild = self.slow = 0.0
        self._count = _FIRST_SLOW
        self.agrees = True
        self.slowness = 1.0

    def came(self, predicted: float, seconds: float, slowness: float) -> None:
        """After so many seconds where the worker was taken to be average, which is `slowness` times as long as it was said to take."""
        doublings = log2(max(seconds, _SMALL) / max(predicted, _SMALL))
        doublings = min(max(doublings, -_MOST_OFF), _MOST_OFF)
        self.wild += _OFF_SHARE * (abs(doublings - self.off) - self.wild)
        self.off += _OFF_SHARE * (doublings - self.off)
        step = doublings + log2(slowness) - self.slow
        self._count = min(self._count + 1, _LAST_SLOW)
        self.slow += min(max(step, -1.0), 1.0) / self._count


class CostModel:
    """`learnt`: whether its numbers are used. `ahead`: missing tokens that one token ahead costs; `beyond`: that a request costs
    for which the worker has no room yet; `under_way`: that a token ahead costs less if it may be computed by now, of which there are
    `rate` in a second. `in_time`: whether first bytes are heard of when they come. `peers`: how many fits of
    others are in the numbers.
    """

    def __init__(self) -> None:
        self.learnt = False
        self.in_time = False
        self.ahead = 1.0
        self.beyond = self.rate = self.under_way = 0.0
        self.numbers = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        """Seconds: fixed, for a thousand missing tokens, for a thousand ahead, for a request there, for one beyond the room, and by how
        many it is sooner for each second under way."""
        self.variances = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        """The squares of the standard errors of what was learnt here."""
        self.peers = 0
        self._fit = self.numbers
        """The fit of the own answers; `_fits`: whether it is clearly better than one number for all."""
        self._fits = False
        self._errors: tuple[Any, float, float] | None = None
        """The own answers: their rows, scaled, and the squared errors of the own fit and of one number."""
        # bounded: by the peers that are connected
        self._of_peers: Sequence[Fit] = ()
        self._rows: Any = np.zeros((_KEPT, _SECONDS + 1))
        # bounded: _KEPT, with those of _pending
        self._workers: list[WorkerPace] = []
        self._next = self.answers = 0
        """How many it has learnt from, those that it forgot among them."""
        self._due = -inf
        # bounded: _EVERY
        self._pending: list[Answer] = []
        self.errors = Histogram(ERROR_BUCKETS)
        self.predictions = Histogram(PREDICTION_BUCKETS)
        # bounded: its maxlen
        self._recent: deque[float] = deque(maxlen=200)

    def predict(self, known: Known) -> float:
        """Seconds to the first byte on an average worker; UNKNOWN until that is learnt."""
        return _sum(self.numbers, known) if self.learnt else UNKNOWN

    @property
    def own(self) -> Fit | None:
        """The fit that was learnt here, for other pickers; None: nothing that is of use."""
        return Fit(tuple(self._fit), self.answers) if self._fits else None

    def use_peer_fits(self, fits: Sequence[Fit]) -> bool:
        """Take the fits of all other pickers in place of those before. Returns whether the numbers are others now.

        A picker that has learnt nothing itself keeps what it heard last: workers are the same when the picker that knew them is gone.
        """
        if fits == self._of_peers or not (fits or self._fits):
            return False
        self._of_peers = fits
        before = self.learnt, self.numbers
        self._merge()
        return (self.learnt, self.numbers) != before

    def wants(self, now: float) -> bool:
        """Whether to learn from an answer that is heard of now."""
        due = max(self._due, now - _AT_ONCE * _APART)
        if due > now:
            return False
        self._due = due + _APART
        return True

    def observe(
        self, worker: WorkerPace, known: Known, seconds: float, predicted: float, slowness: float = 1.0
    ) -> bool:
        """The first byte came. `known`: what `predict` was given. Times are those that an average worker would take, which are
        multiplied by `slowness` for this one.

        Returns whether its numbers are others now.
        """
        if predicted >= 0.0:
            error = abs(predicted - seconds) / max(seconds, _SMALL)
            self.errors.observe(error)
            self.predictions.observe(predicted)
            self._recent.append(error)
        if self.answers >= _FEWEST:
            worker.came(_sum(self._fit, known), seconds, slowness)
        missing, ahead, requests, beyond, since = known
        pending, tokens = self._pending, (missing / _THOUSAND, ahead / _THOUSAND)
        pending.append((1.0, *tokens, requests, beyond, since, max(seconds, _SMALL)))
        at = self._next + len(pending)
        self._workers[at - 1 : at] = [worker]
        self.answers += 1
        count = self.answers
        if len(pending) < (4 if count <= _FEW else _EVERY):
            return False
        self._rows[self._next : at] = pending
        self._next = at % _KEPT
        pending.clear()
        if count < _FEWEST:
            return False
        self._solve()
        return True

    @property
    def error(self) -> float | None:
        """The median share by which the last predictions were wrong; None: there were none."""
        return median(self._recent) if self._recent else None

    def _solve(self) -> None:
        self._compare()
        agree = [worker.agrees for worker in self._workers]
        rows = self._rows[: len(agree)][agree]
        count = len(rows)
        if count < _FEWEST:
            self._fits, self._errors = False, None
            self._merge()
            return
        seconds, since = rows[:, _SECONDS], rows[:, 5].copy()
        least = 0.0 if self._fits else float(np.median(seconds))
        found = self._fit
        for _ in range(1 if self._fits else _TRIES):
            rows[:, 5] = -np.minimum(since, rows[:, 2] * found[1])
            foreseen = rows[:, :_SECONDS] @ found
            scale = np.maximum(np.maximum(seconds, foreseen), least)
            scale *= np.sqrt(_CLOSE + np.abs(foreseen - seconds) / scale)
            scaled = rows / scale[:, None]
            table: list[list[float]] = (scaled.T @ scaled).tolist()
            found = _least_squares(table, count, found)
            least /= 4.0
        products, total = table[_SECONDS], table[_SECONDS][_SECONDS]
        error = _squared_error(table, found)
        of_one = max(1e-9, total - products[0] ** 2 / table[0][0])
        ratio = error / (count - 5) / (of_one / (count - 1))
        self._fit = found
        variance = error / max(1, count - _SECONDS)
        self.variances = [variance / max(table[at][at], 1e-9) for at in range(_SECONDS)]
        self._fits = found[1] > 1e-6 and ratio < (_NO_BETTER if self._fits else _BETTER)
        self._errors = scaled, error, of_one
        self._merge()

    def _merge(self) -> None:
        """Use what was learnt here and by others, as far as the own answers bear it out."""
        fits = self._borne_out()
        self.peers = len(fits)
        if self._errors is None and not self._fits:
            self._use(fits[0].seconds if fits else self._fit, learnt=bool(fits))
            return
        if self._fits:
            fits.append(Fit(tuple(self._fit), self.answers))
        # what is told of more answers than are kept is of those that are kept
        weights = [min(fit.answers, _KEPT) for fit in fits]
        total = sum(weights)
        columns = zip(*[fit.seconds for fit in fits], strict=True)
        merged = [sum(map(mul, weights, column)) / total for column in columns] if self.peers else self._fit
        self._use(merged, learnt=bool(fits))

    def _borne_out(self) -> list[Fit]:
        fits = [
            fit for fit in self._of_peers if len(fit.seconds) == len(LEARNT_NUMBERS) and fit.seconds[1] > 1e-6
        ]
        if self._errors is None:
            return _middle(fits)
        rows, of_own, of_one = self._errors
        most = min(_NEARLY * of_own, of_one) + _MARGIN * of_one if self._fits else _BETTER * of_one
        return [
            fit for fit in fits if ((rows[:, :_SECONDS] @ fit.seconds - rows[:, _SECONDS]) ** 2).sum() <= most
        ]

    def _compare(self) -> None:
        """The middle of all is right, not what was learnt: that may come from those who are wrong."""
        workers = list(dict.fromkeys(self._workers))
        off = median([worker.off for worker in workers])
        wild = _WILD + _WILD_TIMES * median([worker.wild for worker in workers])
        for worker in workers:
            worker.agrees = abs(worker.off - off) < _FAR_OFF and worker.wild <= wild
        slow = median([worker.slow for worker in workers])
        for worker in workers:
            worker.slowness = 2.0 ** min(max(worker.slow - slow, -_MOST_SLOW), _MOST_SLOW)

    def _use(self, numbers: Sequence[float], *, learnt: bool) -> None:
        self.numbers = list(numbers)
        self.learnt = learnt
        if learnt:
            missing = self.numbers[1]
            self.ahead = min(self.numbers[2] / missing, MOST_AHEAD)
            self.beyond = min(_THOUSAND * self.numbers[4] / missing, MOST_BEYOND)
            self.under_way = min(self.numbers[5], self.ahead)
            self.rate = _THOUSAND / missing if self.under_way > _SMALL else 0.0
        else:
            self.ahead, self.beyond, self.rate, self.under_way = 1.0, 0.0, 0.0, 0.0


def _sum(numbers: Sequence[float], known: Known) -> float:
    missing, ahead, requests, beyond, since = known
    fixed, of_missing, of_ahead, of_request, of_beyond, of_second = numbers
    tokens = (of_missing * missing + of_ahead * ahead) / _THOUSAND
    under_way = min(since, of_missing * ahead / _THOUSAND)
    return max(0.0, fixed + tokens + of_request * requests + of_beyond * beyond - of_second * under_way)


def _middle(fits: Sequence[Fit]) -> list[Fit]:
    """The one in the middle, by the answers behind them: a whole fit, as numbers of several need not go together."""
    left = sum(min(fit.answers, _KEPT) for fit in fits) / 2.0
    for fit in sorted(fits, key=lambda one: _sum(one.seconds, _TYPICAL)):
        left -= min(fit.answers, _KEPT)
        if left <= 0.0:
            return [fit]
    return []


def _squared_error(table: list[list[float]], found: Sequence[float]) -> float:
    products, error = table[_SECONDS], table[_SECONDS][_SECONDS]
    for row, number, product in zip(table, found, products, strict=False):
        explained = sum([one * other for one, other in zip(row, found, strict=False)])
        error += number * (explained - 2.0 * product)
    return max(0.0, error)


def _least_squares(table: list[list[float]], count: int, start: list[float]) -> list[float]:
    """The six numbers, none negative and the last at most 1, by descent along each of them in turn. `table`: the products of all
    columns, the last of which is what the others should add up to.
    """
    least = _SMALL / count
    # as if some answers of typical prompts had said that a token ahead takes as long as a missing one
    s00, s01, s02, s03, s04, s05, w0 = table[0]
    _, s11, s12, s13, s14, s15, w1 = table[1]
    _, _, s22, s23, s24, s25, w2 = table[2]
    _, _, _, s33, s34, s35, w3 = table[3]
    _, _, _, _, s44, s45, w4 = table[4]
    _, _, _, _, _, s55, w5 = table[5]
    tie = _PRIOR_ANSWERS / count * s11
    s21, s22 = s12 - tie, s22 + tie  # it ties the third number to the second, not the second to the third
    d0, d1, d2, d3, d4, d5 = s00 + least, s11 + least, s22 + least, s33 + least, s44 + least, s55 + least
    a, b, c, d, e, f = start
    for _ in range(_ROUNDS):  # written out: this is the most of what learning costs
        a = max(0.0, (w0 - s01 * b - s02 * c - s03 * d - s04 * e - s05 * f) / d0)
        b = max(0.0, (w1 - s01 * a - s12 * c - s13 * d - s14 * e - s15 * f) / d1)
        c = max(0.0, (w2 - s02 * a - s21 * b - s23 * d - s24 * e - s25 * f) / d2)
        d = max(0.0, (w3 - s03 * a - s13 * b - s23 * c - s34 * e - s35 * f) / d3)
        e = max(0.0, (w4 - s04 * a - s14 * b - s24 * c - s34 * d - s45 * f) / d4)
        f = min(1.0, max(0.0, (w5 - s05 * a - s15 * b - s25 * c - s35 * d - s45 * e) / d5))
    return [a, b, c, d, e, f]
