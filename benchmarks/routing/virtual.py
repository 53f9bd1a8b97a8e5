"""Simulates a run in virtual time, with the demo's model of a worker and the picker's own scheduling.

What the picker learns, and when, is as in the real thing: pages every 50 ms; response headers a moment after the request
where an answer is streamed, else at its end; a request is in flight until its response headers, as with the Envoy that
`python -m epp envoy-config` prints.
"""

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.routing.arms import Arm, picker
from benchmarks.routing.figures import Answer
from benchmarks.routing.workloads import Turn, Workload
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS
from epp.scheduling.pick import Pick
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
_HEADERS: Final = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}


@dataclass(slots=True, eq=False)
class _Request:
    at: float
    turn: Turn
    work: Work
    pick: Pick
    worker: int
    first: float = 0.0
    cached: int = 0


class Run:
    """One workload under one configuration."""

    def __init__(self, arm: Arm, workload: Workload, seed: int) -> None:
        self.answers: list[Answer] = []
        self._workload = workload
        self._pages = workload.kv_usage
        count = len(self._pages) or WORKERS
        self._store, self._director = picker(arm, count, seed)
        self._workers = [SchedulerModel(LIMITS) for _ in range(count)]
        self._due: list[float | None] = [None] * count
        self._requests: dict[int, _Request] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        turns = workload.turns(seed)
        self._left = sum(turn.count for turn in turns)
        self._keys = itertools.count(len(turns))
        for endpoint in self._store.endpoints:
            self._store.set_cache_tokens(endpoint, LIMITS.kv_tokens)
        self._scrape(0.0)
        for key, turn in enumerate(turns):
            self._at(turn.at, self._arrive, key, turn)

    def run(self) -> list[Answer]:
        """Returns all requests, in the order in which they finished."""
        while self._left:
            now, _, what, given = heapq.heappop(self._events)
            what(now, *given)
        return self.answers

    def _at(self, when: float, what: Callable[..., None], *given: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, given))

    def _scrape(self, now: float) -> None:
        for row, worker in enumerate(self._workers):
            load = worker.load(now)
            # what others, whom this picker does not know, have in the cache
            usage = max(load.kv_usage, self._pages[row]) if self._pages else load.kv_usage
            shown = Load(
                waiting=load.waiting,
                running=load.running,
                kv_usage=usage,
                others={PROMPT_TOKENS: float(worker.totals.prompt)},
            )
            self._store.observe(self._store.endpoints[row], shown, now, _SCRAPE)
        self._at(now + _SCRAPE, self._scrape)

    def _arrive(self, now: float, key: int, turn: Turn) -> None:
        body = json.dumps({"model": "m", "prompt": turn.prompt, "stream": self._workload.streamed}).encode()
        pick = self._director.direct(_HEADERS, body, None, now)
        assert isinstance(pick, Pick)  # nothing waits here
        worker = int(pick.endpoints[0].id[1:])
        tokens = tokenize(turn.prompt)
        answer = echo(turn.prompt, turn.output_tokens)
        digests = block_digests("m", [*tokens, *answer], LIMITS.block_size)
        work = Work(len(tokens), turn.output_tokens, digests)
        self._requests[key] = _Request(now, turn, work, pick, worker)
        self._at(now + _HOP, self._begin, key)

    def _begin(self, now: float, key: int) -> None:
        request = self._requests[key]
        self._workers[request.worker].submit(key, request.work)
        self._advance(now, request.worker)
        if self._workload.streamed:
            self._at(now + _BACK, self._responded, request.pick)

    def _responded(self, now: float, pick: Pick) -> None:
        self._director.responded(pick, 200, now)
        self._director.release(pick, now)

    def _step(self, now: float, number: int, due: float) -> None:
        if self._due[number] == due:
            self._advance(now, number)

    def _advance(self, now: float, number: int) -> None:
        worker = self._workers[number]
        for token in worker.advance(now):
            request = self._requests[token.key]
            if not request.first:
                request.first, request.cached = token.at + _BACK, token.cached_tokens
            if token.finished:
                self._end(now, token.key, token.at + _BACK)
        due = self._due[number] = worker.next_event(now)
        if due is not None:
            self._at(due, self._step, number, due)

    def _end(self, now: float, key: int, ended: float) -> None:
        request = self._requests.pop(key)
        turn, tokens = request.turn, request.work.prompt_tokens
        self.answers.append(
            Answer(request.at, request.first, ended, request.pick.endpoints[0].id, tokens, request.cached)
        )
        if not self._workload.streamed:
            self._at(now + _BACK, self._responded, request.pick)
        if turn.then is not None:
            self._at(ended + turn.then.at, self._arrive, next(self._keys), turn.then)
        self._left -= 1
