"""The pickers. Ties are broken at random, so that a burst does not land on the first endpoint of a list."""

import random
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from epp.endpoints.endpoint import Floats, Indices
from epp.plugins.declaration import PluginDeclaration, Role
from epp.plugins.section import PickerParameters

_LOWEST: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class MaxScorePicker:
    """Picks the highest scores; ties are broken at random.

    Ties of fallbacks are broken by the choice and its score, which each request in flight changes. That draws no chance: a choice is
    the same with fallbacks and without.
    """

    rng: random.Random

    def pick(self, scores: Floats, k: int) -> Indices:
        return np.array(self.highest(scores, k), dtype=np.intp)

    def highest(self, scores: Floats, k: int) -> list[int]:
        """The rows of the `k` highest scores, the highest first.

        One after the other: for few of them this costs a few microseconds, whatever the number of endpoints.
        """
        wanted, left = min(k, len(scores)), scores.copy()
        chosen: list[int] = []
        row = int(left.argmax())
        score = highest = float(left.item(row))
        while score > _LOWEST:
            left[row] = _LOWEST
            following = int(left.argmax())
            if left.item(following) != score:
                chosen.append(row)
            else:
                left[row] = score
                rows = (left == score).nonzero()[0]
                tied: list[int] = rows.tolist()
                if not chosen:
                    chosen.append(tied.pop(self.rng.randrange(len(tied))))
                while tied and len(chosen) < wanted:
                    chosen.append(tied.pop(hash((highest, chosen[0])) % len(tied)))
                if len(chosen) < wanted:
                    left[rows] = _LOWEST
                    following = int(left.argmax())
            if len(chosen) == wanted:
                return chosen
            row, score = following, left.item(following)
        # NaN, or nothing but -inf is left
        sorted_rows: list[int] = _descending(scores, self.rng)[:wanted].tolist()
        return sorted_rows

    def break_tie(self, best: list[int]) -> int:
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


MAX_SCORE_PICKER: Final = replace(_picker("max-score-picker", MaxScorePicker), is_default=True)
RANDOM_PICKER: Final = _picker("random-picker", RandomPicker)
WEIGHTED_RANDOM_PICKER: Final = _picker("weighted-random-picker", WeightedRandomPicker)
