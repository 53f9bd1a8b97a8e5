"""A way to choose that knows all there is to know at the moment of a choice; only in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.routing.baseline import Baseline
from benchmarks.routing.chooser import Wanted
from benchmarks.routing.machines import WorkerModel
from examples.simulator.scheduler_model import Limits


@dataclass(frozen=True, slots=True)
class _Future:
    """What a worker will do. `times`: of each first token and each end; `open_ends`: those of them that come after `until`."""

    times: Sequence[float]
    open_ends: int
    until: float

    def spent(self, now: float) -> float:
        """The sum of the times from now to these."""
        later = [time for time in self.times if time > now]
        return sum(later) - now * len(later) + self.open_ends * (self.until - now)


class Oracle(Baseline):
    """Knows all caches and all work that is there, and nothing of what comes: runs each worker ahead with and without the
    request, and takes the one where the times to all first tokens and all ends together grow least.

    It is greedy, so another policy can beat it by a little.
    """

    _HORIZON: Final = 60.0
    """Longer than any queue: at 15 s it piles all long prompts on one worker, where one more seems to cost nothing."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(workers, limits, seed)
        self._workers = workers
        self._on_their_way: list[dict[int, Wanted]] = [{} for _ in workers]
        self._begun: set[int] = set()
        self._stopped: set[int] = set()
        self._futures: dict[int, _Future] = {}
        """Of workers to which nothing was sent since."""

    def choose(self, wanted: Wanted, now: float) -> int:
        computing = [worker for worker in self._there if worker not in self._stopped]
        return self._least({worker: self._growth(wanted, worker, now) for worker in computing or self._there})

    def gone(self, worker: int, now: float) -> None:
        super().gone(worker, now)
        self._futures.pop(worker, None)

    def stopped(self, worker: int, now: float) -> None:
        self._stopped.add(worker)

    def continued(self, worker: int, now: float) -> None:
        self._stopped.discard(worker)
        self._futures.pop(worker, None)

    def sent(self, wanted: Wanted, worker: int, now: float) -> None:
        self._on_their_way[worker][wanted.key] = wanted
        self._futures.pop(worker, None)

    def arrived(self, wanted: Wanted, worker: int, now: float) -> None:
        del self._on_their_way[worker][wanted.key]

    def first_token(self, wanted: Wanted, worker: int, now: float) -> None:
        self._begun.add(wanted.key)

    def ended(self, wanted: Wanted, worker: int, now: float) -> None:
        self._begun.discard(wanted.key)

    def failed(self, wanted: Wanted, worker: int, now: float) -> None:
        self._on_their_way[worker].pop(wanted.key, None)
        self._begun.discard(wanted.key)

    def _growth(self, wanted: Wanted, worker: int, now: float) -> float:
        base = self._workers[worker].fork()
        for other in self._on_their_way[worker].values():
            base.submit(other.key, other.work)
        before = self._futures.get(worker)
        if before is None or before.until < now + self._HORIZON / 2:
            before = self._futures[worker] = self._future(base.fork(), now)
        base.submit(wanted.key, wanted.work)
        return self._future(base, now, before.until).spent(now) - before.spent(now)

    def _future(self, worker: WorkerModel, now: float, until: float = 0.0) -> _Future:
        """Until the horizon, or `until`, which must be the same for futures that are compared."""
        until = until or now + self._HORIZON
        begun, times = set(self._begun), list[float]()
        at: float | None = now
        while at is not None and at < until:
            for token in worker.advance(at):
                if token.key not in begun:
                    begun.add(token.key)
                    times.append(token.at)
                if token.finished:
                    times.append(token.at)
            worker.skip_decodes(until)
            at = worker.next_event(at)
        load = worker.load(until)
        return _Future(times, load.running + 2 * load.waiting, until)
