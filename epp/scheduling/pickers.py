"""The pickers. Ties are broken at random, so that a burst does not land on the first endpoint of a list."""

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Floats, Indices, Mask
from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import PickerParameters

_FEW: Final = 8


@dataclass(frozen=True, slots=True)
class MaxScorePicker:
    """Picks the highest scores; ties are broken at random."""

    rng: random.Random

    def pick(self, scores: Floats, k: int) -> Indices:
        if k == 1:
            return np.array([self.best(scores)], dtype=np.intp)
        if k > _FEW or not np.isfinite(scores).all():
            return _descending(scores, self.rng)[:k]
        # one after the other: for a few fallbacks among many endpoints this costs less than to sort all
        left = scores.copy()
        chosen: list[int] = []
        for _ in range(min(k, len(scores))):
            row = self.best(left)
            chosen.append(row)
            left[row] = -np.inf
        return np.array(chosen, dtype=np.intp)

    def best(self, scores: Floats) -> int:
        """The row of the highest score."""
        row = int(scores.argmax())
        best: Mask = scores == scores.item(row)
        return row if np.count_nonzero(best) == 1 else self.break_tie(best.nonzero()[0].tolist())

    def break_tie(self, best: list[int]) -> int:
        """One of the rows with the best score."""
        return best[0] if len(best) == 1 else best[self.rng.randrange(len(best))]


@dataclass(frozen=True, slots=True)
class RandomPicker:
    """Picks at random, whatever the scores."""

    rng: random.Random

    def pick(self, scores: Floats, k: int) -> Indices:
        return np.array(self.rng.sample(range(len(scores)), min(k, len(scores))), dtype=np.intp)


@dataclass(frozen=True, slots=True)
class WeightedRandomPicker:
    """Picks at random in proportion to the scores (A-Res, Efraimidis and Spirakis 2006); scores of 0 and less come last."""

    rng: random.Random

    def pick(self, scores: Floats, k: int) -> Indices:
        # log(u) / w orders like u ** (1 / w), and does not round to 0 for a small weight
        draws = np.array([1.0 - self.rng.random() for _ in range(len(scores))])
        worst = np.finfo(np.float64).min
        weights = np.where(scores > 0, scores, 1.0)
        with np.errstate(over="ignore"):  # a tiny weight overflows to the lowest key
            keys = np.where(scores > 0, np.maximum(np.log(draws) / weights, worst), -np.inf)
        order = np.lexsort((draws, np.minimum(scores, 0.0), keys))[::-1]
        return order[:k]


def _descending(scores: Floats, rng: random.Random) -> Indices:
    # shuffle, then sort stably: equal scores keep the random order
    shuffled = np.array(rng.sample(range(len(scores)), len(scores)), dtype=np.intp)
    order: Indices = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    return order


def _picker(
    type: str, picker: type[MaxScorePicker | RandomPicker | WeightedRandomPicker]
) -> PluginDeclaration:
    return PluginDeclaration(
        type=type,
        role=Role.PICKER,
        parameters=PickerParameters,
        build=lambda given, context: picker(context.rng),
    )


MAX_SCORE_PICKER: Final = _picker("max-score-picker", MaxScorePicker)
RANDOM_PICKER: Final = _picker("random-picker", RandomPicker)
WEIGHTED_RANDOM_PICKER: Final = _picker("weighted-random-picker", WeightedRandomPicker)
