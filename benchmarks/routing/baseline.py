"""What the ways to choose that are not the picker's own have in common."""

import random
from collections.abc import Mapping, Sequence

from benchmarks.routing.chooser import Chooser, Wanted
from benchmarks.routing.machines import WorkerModel
from examples.simulator.scheduler_model import Limits


class Baseline(Chooser):
    """Draws a worker for each request, and knows nothing of the workers but how many there are."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        self._limits = limits
        self._rng = random.Random(seed)
        self._count = len(workers)
        self._there: list[int] = []
        """Workers that may get requests."""

    def joined(self, worker: int, now: float) -> None:
        self._there = sorted([*self._there, worker])

    def gone(self, worker: int, now: float) -> None:
        self._there.remove(worker)

    def choose(self, wanted: Wanted, now: float) -> int:
        return self._rng.choice(self._there)

    def _least(self, costs: Mapping[int, float]) -> int:
        least = min(costs.values())
        return self._rng.choice([worker for worker, cost in costs.items() if cost <= least + 1e-12])
