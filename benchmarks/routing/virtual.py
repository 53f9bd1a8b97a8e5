"""Simulates a run in virtual time, with the demo's model of a worker and the picker's own scheduling.

What a picker learns, and when, is as in the real thing: pages every 50 ms; response headers a moment after the request
where an answer is streamed, else at its end.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.routing.arms import MakeChooser
from benchmarks.routing.chooser import Chooser, Wanted
from benchmarks.routing.figures import Answer
from benchmarks.routing.workloads import Turn, Workload
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from examples.simulator.scheduler_model import Limits, SchedulerModel, Work
from examples.simulator.tokens import block_digests, echo, tokenize

WORKERS: Final = 5
LIMITS: Final = Limits(
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    num_blocks=4096,
    step_seconds=0.020,
    sequence_seconds=0.0005,
    token_seconds=0.0002,
)
_HOP: Final = 0.003
"""Seconds from the client through the picker to the worker."""
_BACK: Final = 0.002
"""From the worker to the picker and the client."""
_SCRAPE: Final = 0.05


@dataclass(slots=True, eq=False)
class _Request:
    at: float
    wanted: Wanted
    worker: int
    chooser: Chooser
    first: float = 0.0
    cached: int = 0


class Run:
    """One workload and one way to choose."""

    def __init__(self, make: MakeChooser, workload: Workload, seed: int) -> None:
        self.answers: list[Answer] = []
        self._workload = workload
        self._workers = _workers(workload)
        self._choosers = [make(self._workers, LIMITS, seed + 1000 * n) for n in range(workload.pickers)]
        self._due: list[float | None] = [None] * len(self._workers)
        self._requests: dict[int, _Request] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._keys = itertools.count()
        turns = workload.turns(seed)
        self._left = sum(turn.count for turn in turns)
        self._scrape(0.0)
        for turn in turns:
            self._at(turn.at, self._arrive, turn)

    def run(self) -> list[Answer]:
        """Returns all requests, in the order in which they finished."""
        while self._left:
            now, _, what, given = heapq.heappop(self._events)
            what(now, *given)
        return self.answers

    def _at(self, when: float, what: Callable[..., None], *given: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, given))

    def _scrape(self, now: float) -> None:
        pages = self._workload.kv_usage
        for number, worker in enumerate(self._workers):
            load = worker.load(now)
            # what others, whom this picker does not know, have in the cache
            usage = max(load.kv_usage, pages[number]) if pages else load.kv_usage
            page = Load(
                waiting=load.waiting,
                running=load.running,
                kv_usage=usage,
                others={PROMPT_TOKENS: float(worker.totals.prompt)},
            )
            for chooser in self._choosers:
                chooser.read(number, page, now, _SCRAPE)
        self._at(now + _SCRAPE, self._scrape)

    def _arrive(self, now: float, turn: Turn) -> None:
        key = next(self._keys)
        tokens = tokenize(turn.prompt)
        answer = echo(turn.prompt, turn.output_tokens)
        digests = block_digests("m", [*tokens, *answer], LIMITS.block_size)
        wanted = Wanted(key, turn, Work(len(tokens), turn.output_tokens, digests), self._workload.streamed)
        chooser = self._choosers[key % len(self._choosers)]
        worker = chooser.choose(wanted, now)
        chooser.sent(wanted, worker, now)
        self._requests[key] = _Request(now, wanted, worker, chooser)
        self._at(now + _HOP, self._begin, key)

    def _begin(self, now: float, key: int) -> None:
        request = self._requests[key]
        self._workers[request.worker].submit(key, request.wanted.work)
        request.chooser.arrived(request.wanted, request.worker, now)
        self._advance(now, request.worker)
        if self._workload.streamed:
            self._at(now + _BACK, self._responded, request)

    def _responded(self, now: float, request: _Request) -> None:
        request.chooser.responded(request.wanted, request.worker, now)

    def _first(self, now: float, request: _Request) -> None:
        request.chooser.first_token(request.wanted, request.worker, now)

    def _ended(self, now: float, request: _Request) -> None:
        request.chooser.ended(request.wanted, request.worker, now)

    def _step(self, now: float, number: int, due: float) -> None:
        if self._due[number] == due:
            self._advance(now, number)

    def _advance(self, now: float, number: int) -> None:
        worker = self._workers[number]
        for token in worker.advance(now):
            request = self._requests[token.key]
            if not request.first:
                request.first, request.cached = token.at + _BACK, token.cached_tokens
                self._at(request.first, self._first, request)
            if token.finished:
                self._end(token.key, token.at + _BACK)
        due = self._due[number] = worker.next_event(now)
        if due is not None:
            self._at(due, self._step, number, due)

    def _end(self, key: int, ended: float) -> None:
        request = self._requests.pop(key)
        turn, tokens = request.wanted.turn, request.wanted.work.prompt_tokens
        worker = f"w{request.worker}"
        self.answers.append(Answer(request.at, request.first, ended, worker, tokens, request.cached))
        if not self._workload.streamed:
            self._at(ended, self._responded, request)
        self._at(ended, self._ended, request)
        if turn.then is not None:
            self._at(ended + turn.then.at, self._arrive, turn.then)
        self._left -= 1


def _workers(workload: Workload) -> Sequence[SchedulerModel]:
    slowness = workload.slowness or (1.0,) * (len(workload.kv_usage) or WORKERS)
    return [
        SchedulerModel(
            replace(
                LIMITS,
                step_seconds=LIMITS.step_seconds * slow,
                sequence_seconds=LIMITS.sequence_seconds * slow,
                token_seconds=LIMITS.token_seconds * slow,
            )
        )
        for slow in slowness
    ]
