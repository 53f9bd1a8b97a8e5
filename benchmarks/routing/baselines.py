"""Ways to choose a worker that others use, for virtual time.

Each knows what its original knows: its own index of prefixes, pages every 50 ms, what it sent. Facts of the originals:
the Go picker's plugins of those names (llm-d-router, 2026-08); ai-dynamo's KV router at temperature 0; consistent hashing
with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2018); Envoy's LEAST_REQUEST with two choices.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.routing.baseline import Baseline
from benchmarks.routing.chooser import Chooser, Wanted
from benchmarks.routing.machines import WorkerModel
from benchmarks.routing.oracle import Oracle
from epp.endpoints.load import Load
from examples.simulator.scheduler_model import Limits

_BLOCK: Final = 64
"""Tokens of a block in the baselines' indexes."""
_MISSING_AT_LEAST: Final = 1.0


class RoundRobin(Baseline):
    """Each worker in its turn."""

    _last = -1

    def choose(self, wanted: Wanted, now: float) -> int:
        self._last = next((worker for worker in self._there if worker > self._last), self._there[0])
        return self._last


class _Counting(Baseline):
    """Counts requests from the choice to the end of the answer."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(workers, limits, seed)
        self._active = [0] * self._count

    def sent(self, wanted: Wanted, worker: int, now: float) -> None:
        self._active[worker] += 1

    def ended(self, wanted: Wanted, worker: int, now: float) -> None:
        self._active[worker] -= 1

    def failed(self, wanted: Wanted, worker: int, now: float) -> None:
        self._active[worker] -= 1


class LeastRequest(_Counting):
    """Of two workers that are drawn, the one with fewer requests."""

    def choose(self, wanted: Wanted, now: float) -> int:
        one, other = self._rng.choice(self._there), self._rng.choice(self._there)
        return one if self._active[one] <= self._active[other] else other


class BoundedHashing(_Counting):
    """By a hash of the first 1,024 tokens; to the next worker while one has 1.25 times the average of requests."""

    def choose(self, wanted: Wanted, now: float) -> int:
        beginning = wanted.work.digests[: 1024 // self._limits.block_size]
        order = list(range(self._count))
        random.Random(beginning[-1] if beginning else b"").shuffle(order)
        order = [worker for worker in order if worker in self._there]
        most = 1.25 * (sum(self._active[worker] for worker in order) + 1) / len(order)
        return next((worker for worker in order if self._active[worker] + 1 <= most), order[0])


class LoadOnly(Baseline):
    """By the pages: queue-scorer and kv-cache-utilization-scorer, both with weight 1."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(workers, limits, seed)
        self._workers = workers
        self._pages: dict[int, Load] = {}

    def read(self, worker: int, page: Load, now: float, period: float) -> None:
        self._pages[worker] = page

    def choose(self, wanted: Wanted, now: float) -> int:
        queues = {worker: self._queue(worker) for worker in self._there}
        least, most = min(queues.values()), max(queues.values())
        return self._least(
            {
                worker: (queue - least) / (most - least or 1.0) + self._cost(wanted, worker)
                for worker, queue in queues.items()
            }
        )

    def _queue(self, worker: int) -> float:
        return self._pages[worker].waiting or 0.0 if worker in self._pages else 0.0

    def _cost(self, wanted: Wanted, worker: int) -> float:
        return self._pages[worker].kv_usage or 0.0 if worker in self._pages else 0.0


class ExactPrefixes(LoadOnly):
    """The same, and with weight 2 the share of the prompt that the worker really has, as from its cache's events."""

    def _cost(self, wanted: Wanted, worker: int) -> float:
        blocks = wanted.work.digests[: wanted.work.prompt_tokens // self._limits.block_size]
        share = self._workers[worker].cached_blocks(blocks) / max(1, len(blocks))
        return super()._cost(wanted, worker) - 2.0 * share


class _PrefixIndex:
    """The blocks that each worker is believed to hold; the least recently used are dropped first."""

    def __init__(self, workers: int, capacity: int) -> None:
        self._held: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(workers)]
        self._capacity = capacity

    def match(self, blocks: Sequence[bytes], worker: int) -> int:
        held = self._held[worker]
        return next((count for count, block in enumerate(blocks) if block not in held), len(blocks))

    def add(self, blocks: Sequence[bytes], worker: int) -> None:
        held = self._held[worker]
        for block in blocks:
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._capacity:
            held.popitem(last=False)

    def forget(self, worker: int) -> None:
        self._held[worker].clear()


class _Sticky(_Counting):
    """Knows prefixes from the choice on, and the tokens that it sent and whose first answer has not come."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(workers, limits, seed)
        self._index = _PrefixIndex(self._count, limits.kv_tokens // _BLOCK)
        self._uncomputed = [0.0] * self._count
        self._missing_of: dict[int, float] = {}

    def sent(self, wanted: Wanted, worker: int, now: float) -> None:
        super().sent(wanted, worker, now)
        self._missing_of[wanted.key] = self._missing(wanted, worker)
        self._uncomputed[worker] += self._missing_of[wanted.key]
        self._index.add(self._blocks(wanted), worker)

    def first_token(self, wanted: Wanted, worker: int, now: float) -> None:
        self._uncomputed[worker] -= self._missing_of.pop(wanted.key)

    def failed(self, wanted: Wanted, worker: int, now: float) -> None:
        super().failed(wanted, worker, now)
        self._uncomputed[worker] -= self._missing_of.pop(wanted.key, 0.0)

    def gone(self, worker: int, now: float) -> None:
        super().gone(worker, now)
        self._index.forget(worker)

    def _blocks(self, wanted: Wanted) -> Sequence[bytes]:
        step = _BLOCK // self._limits.block_size
        return wanted.work.digests[step - 1 : wanted.work.prompt_tokens // self._limits.block_size : step]

    def _share(self, wanted: Wanted, worker: int) -> float:
        blocks = self._blocks(wanted)
        return self._index.match(blocks, worker) / max(1, len(blocks))

    def _missing(self, wanted: Wanted, worker: int) -> float:
        held = _BLOCK * self._index.match(self._blocks(wanted), worker)
        return max(_MISSING_AT_LEAST, wanted.work.prompt_tokens - held)


class GoSticky(_Sticky):
    """prefix-cache-affinity-filter with a threshold of .80 and a penalty of 18 s, then token-load-scorer."""

    def choose(self, wanted: Wanted, now: float) -> int:
        workers = self._there
        sticky = [worker for worker in workers if self._share(wanted, worker) >= 0.80]
        if sticky and len(sticky) < len(workers):
            behind = min(self._uncomputed[worker] for worker in sticky)
            elsewhere = min(self._uncomputed[worker] for worker in workers if worker not in sticky)
            if (behind - elsewhere) * self._limits.token_seconds > 18.0:
                sticky = []
        return self._least(
            {worker: self._uncomputed[worker] + self._missing(wanted, worker) for worker in sticky or workers}
        )


class BlocksInUse(_Sticky):
    """The fewest blocks to compute and in use, each counted once."""

    def __init__(self, workers: Sequence[WorkerModel], limits: Limits, seed: int) -> None:
        super().__init__(workers, limits, seed)
        self._used = [0.0] * self._count

    def choose(self, wanted: Wanted, now: float) -> int:
        return self._least(
            {
                worker: self._uncomputed[worker] + self._missing(wanted, worker) + self._used[worker]
                for worker in self._there
            }
        )

    def sent(self, wanted: Wanted, worker: int, now: float) -> None:
        super().sent(wanted, worker, now)
        self._used[worker] += wanted.work.prompt_tokens

    def ended(self, wanted: Wanted, worker: int, now: float) -> None:
        super().ended(wanted, worker, now)
        self._used[worker] -= wanted.work.prompt_tokens

    def failed(self, wanted: Wanted, worker: int, now: float) -> None:
        super().failed(wanted, worker, now)
        self._used[worker] -= wanted.work.prompt_tokens


BASELINES: Final[Mapping[str, Callable[[Sequence[WorkerModel], Limits, int], Chooser]]] = {
    "random": Baseline,
    "round robin": RoundRobin,
    "least request": LeastRequest,
    "load only": LoadOnly,
    "exact prefixes": ExactPrefixes,
    "bounded hashing": BoundedHashing,
    "blocks in use": BlocksInUse,
    "the Go picker, sticky": GoSticky,
    "oracle": Oracle,
}
