"""A way to choose that knows all there is to know at the moment of a choice; only in virtual time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from benchmarks.routing.baseline import Baseline
from benchmarks.routing.chooser import Wanted
from benchmarks.routing.machines import WorkerModel
from examples.simulator.scheduler_model import Limits, Work


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


class _Later(NamedTuple):
    """A request that a worker gets `at` that time."""

    at: float
    key: int
    work: Work


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
        return self._growth_with(_Later(now, wanted.key, wanted.work), worker, now)

    def _growth_with(self, added: "_Later", worker: int, now: float) -> float:
        base, later = self._workers[worker].fork(), self._later(worker, now)
        for other in self._on_their_way[worker].values():
            base.submit(other.key, other.work)
        before = self._futures.get(worker)
        if before is None or before.until < now + self._HORIZON / 2:
            before = self._futures[worker] = self._future(base.fork(), now, later=later)
        return self._future(base, now, before.until, [*later, added]).spent(now) - before.spent(now)

    def _later(self, worker: int, now: float) -> Sequence["_Later"]:
        """What else it will get."""
        return ()

    def _future(
        self, worker: WorkerModel, now: float, until: float = 0.0, later: Sequence["_Later"] = ()
    ) -> _Future:
        """Until the horizon, or `until`, which must be the same for futures that are compared."""
        until = until or now + self._HORIZON
        begun, times = set(self._begun), list[float]()
        coming = sorted(later, key=lambda one: one.at, reverse=True)
        at: float | None = now
        while at is not None and at < until:
            while coming and coming[-1].at <= at:
                one = coming.pop()
                worker.submit(one.key, one.work)
            for token in worker.advance(at):
                if token.key not in begun:
                    begun.add(token.key)
                    times.append(token.at)
                if token.finished:
                    times.append(token.at)
            worker.skip_decodes(coming[-1].at if coming else until)
            at = worker.next_event(at)
            if coming:
                at = coming[-1].at if at is None else min(at, coming[-1].at)
        load = worker.load(until)
        return _Future(times, load.running + 2 * load.waiting, until)


class PairOracle(Oracle):
    """The same where workers have roles: of all workers that decode, with the worker that computes the prompt first, and without.

    `transfer`: seconds from the end of a prompt on one worker to its KV cache on another.
    """

    def __init__(
        self,
        workers: Sequence[WorkerModel],
        limits: Limits,
        seed: int,
        *,
        transfer: Callable[[int], float],
        there: float,
    ) -> None:
        super().__init__(workers, limits, seed)
        self._transfer = transfer
        self._there_after = there
        self._roles: Sequence[str] = ()
        self._helper: int | None = None
        self._received_at = 0.0
        self._coming: list[dict[int, _Later]] = [{} for _ in workers]
        """To each worker, with the KV cache of its prompt."""
        self._legs: list[dict[int, _Later]] = [{} for _ in workers]
        """To each worker, to compute a prompt for another."""

    def roles(self, roles: Sequence[str]) -> None:
        self._roles = roles

    def helper(self, wanted: Wanted) -> int | None:
        return self._helper

    def choose(self, wanted: Wanted, now: float) -> int:
        self._helper = None
        decode = [one for one in self._there if not self._roles or self._roles[one] != "prefill"]
        alone = {worker: self._growth(wanted, worker, now) for worker in decode}
        best = self._least(alone)
        legs = {one: self._leg(wanted, one, now) for one in self._there if one not in decode}
        if not legs:
            return best
        helper = min(legs, key=lambda one: legs[one][0] + legs[one][1])
        growth, computed_at = legs[helper]
        received_at = computed_at + self._transfer(wanted.work.prompt_tokens)
        work = replace(wanted.work, received=wanted.work.prompt_tokens)
        later = _Later(received_at, wanted.key, work)
        pairs = {worker: growth + self._growth_with(later, worker, now) for worker in decode}
        pair = self._least(pairs)
        if pairs[pair] >= alone[best]:
            return best
        self._helper, self._received_at = helper, received_at
        return pair

    def sent(self, wanted: Wanted, worker: int, now: float) -> None:
        if self._helper is None:
            super().sent(wanted, worker, now)
            return
        work = replace(wanted.work, received=wanted.work.prompt_tokens)
        self._coming[worker][wanted.key] = _Later(self._received_at, wanted.key, work)
        leg = replace(wanted.work, output_tokens=1)
        self._legs[self._helper][wanted.key] = _Later(now + self._there_after, -1 - wanted.key, leg)
        for one in (worker, self._helper):
            self._futures.pop(one, None)

    def arrived(self, wanted: Wanted, worker: int, now: float) -> None:
        self._futures.pop(worker, None)
        if self._coming[worker].pop(wanted.key, None) is None:
            super().arrived(wanted, worker, now)

    def _later(self, worker: int, now: float) -> Sequence[_Later]:
        legs = self._legs[worker]
        for key in [key for key, leg in legs.items() if leg.at <= now]:
            del legs[key]  # it is there
        return [*legs.values(), *self._coming[worker].values()]

    def _leg(self, wanted: Wanted, worker: int, now: float) -> tuple[float, float]:
        """By how much it delays others, and when it is computed."""
        leg = _Later(now, -1 - wanted.key, replace(wanted.work, output_tokens=1))
        base = self._workers[worker].fork()
        at: float | None = now
        computed_at = now + self._HORIZON
        coming = sorted([*self._later(worker, now), leg], key=lambda one: one.at, reverse=True)
        while at is not None and at < now + self._HORIZON:
            while coming and coming[-1].at <= at:
                one = coming.pop()
                base.submit(one.key, one.work)
            found = [token.at for token in base.advance(at) if token.key == leg.key]
            if found:
                computed_at = found[0]
                break
            at = base.next_event(at)
            if coming:
                at = coming[-1].at if at is None else min(at, coming[-1].at)
        own = 2.0 * (computed_at - now)
        return max(0.0, self._growth_with(leg, worker, now) - own), computed_at
