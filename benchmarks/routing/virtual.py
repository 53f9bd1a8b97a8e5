"""Simulates a run in virtual time, with the demo's model of a worker and the picker's own scheduling.

What a picker learns, and when, is as in the real thing: pages every 50 ms; response headers a moment after the request
where an answer is streamed, else at its end.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from benchmarks.routing.arms import MakeChooser
from benchmarks.routing.chooser import Chooser, Wanted
from benchmarks.routing.figures import Answer, Figures
from benchmarks.routing.machines import MACHINES, OURS, Machine, WorkerModel
from benchmarks.routing.turns import BASE_MODEL, Turn
from benchmarks.routing.workloads import Event, Workload
from epp.endpoints.endpoint import Adapters
from epp.endpoints.load import Load
from epp.endpoints.worker_metrics import PROMPT_TOKENS, WorkerMetric
from examples.simulator.scheduler_model import Work
from examples.simulator.tokens import block_digests, echo, tokenize

LIMITS: Final = MACHINES[OURS].limits
_SCRAPE: Final = 0.05


@dataclass(slots=True, eq=False)
class Request:
    at: float
    wanted: Wanted
    worker: int
    chooser: Chooser
    begun: bool = False
    first: float = 0.0
    cached: int = 0
    helper: int | None = None
    """Computes the prompt; None: the worker itself does, or goes on with what was computed."""
    received: bool = False


class Run:
    """One workload, one way to choose and one kind of workers."""

    def __init__(
        self, make: MakeChooser, workload: Workload, seed: int, machine: Machine = MACHINES[OURS]
    ) -> None:
        self._machine = machine
        self.answers: list[Answer] = []
        self._workload = workload
        self._workers = [self._worker(workload, number) for number in range(workload.workers)]
        self._alive: set[int] = set()
        self._known: set[int] = set()  # to the pickers
        self._stopped: dict[int, float] = {}
        self._held: dict[int, list[int]] = {}
        self._choosers = [
            make(self._workers, machine.limits, seed + 1000 * n) for n in range(workload.pickers)
        ]
        for chooser in self._choosers:
            chooser.roles(workload.roles)
        self._due: list[float | None] = [None] * len(self._workers)
        self._requests: dict[int, Request] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ended_prompts = [0] * workload.workers
        self._order = itertools.count()
        self._keys = itertools.count()
        turns = workload.turns(seed)
        self._left = sum(turn.count for turn in turns)
        for number in workload.there_at_the_start():
            self._join(0.0, number)
        self._scrape(0.0)
        for event in workload.events:
            self._at(event.at, self._happen, event)
        for turn in turns:
            self._at(turn.at, self._arrive, turn)

    def run(self) -> list[Answer]:
        """Returns all requests, in the order in which they finished."""
        while self._left:
            now, _, what, given = heapq.heappop(self._events)
            what(now, *given)
        return self.answers

    def figures(self) -> Figures:
        """Of all requests; runs it first, unless that is done."""
        return Figures.of(self.run(), self._workload.workers, self._workload.watched)

    def _at(self, when: float, what: Callable[..., None], *given: object) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, given))

    def _scrape(self, now: float) -> None:
        for number in sorted(self._known):
            if number in self._stopped:
                continue  # its page does not come
            page = self._page(number, now)
            for chooser in self._choosers:
                chooser.read(number, page, now, _SCRAPE)
        self._at(now + _SCRAPE, self._scrape)

    def _page(self, number: int, now: float) -> Load:
        worker, pages, lora = self._workers[number], self._workload.kv_usage, self._workload.max_lora
        load = worker.load(now)
        adapters = Adapters(frozenset(load.loaded_adapters), frozenset(load.waiting_adapters))
        return Load(
            waiting=load.waiting,
            running=load.running,
            # what others, whom this picker does not know, have in the cache
            kv_usage=max(load.kv_usage, pages[number]) if pages else load.kv_usage,
            max_lora=lora or None,
            adapters=adapters if lora else None,
            others=self._counted(number, worker),
        )

    def _counted(self, number: int, worker: WorkerModel) -> dict[WorkerMetric, float]:
        match self._machine.counts:
            case "first token":
                return {PROMPT_TOKENS: float(worker.totals.prompt)}
            case "end":
                return {PROMPT_TOKENS: float(self._ended_prompts[number])}
        return {}

    def _happen(self, now: float, event: Event) -> None:
        match event.what:
            case "join":
                self._join(now, event.worker)
            case "drain":
                self._leave(now, event.worker)
            case "kill":
                self._kill(now, event.worker)
            case "stop":
                self._stopped[event.worker] = now
                for chooser in self._choosers:
                    chooser.stopped(event.worker, now)
            case "continue":
                self._continue(now, event.worker)
            case "restart":  # its connections end, and a new one is accepted
                self._kill(now, event.worker)
                self._join(now, event.worker)

    def _join(self, now: float, number: int) -> None:
        self._alive.add(number)
        self._known.add(number)
        for chooser in self._choosers:
            chooser.joined(number, now)

    def _leave(self, now: float, number: int) -> None:
        if number in self._known:
            self._known.discard(number)
            for chooser in self._choosers:
                chooser.gone(number, now)

    def _kill(self, now: float, number: int) -> None:
        self._leave(now, number)
        self._alive.discard(number)
        self._due[number] = None
        self._stopped.pop(number, None)
        self._held.pop(number, None)
        self._ended_prompts[number] = 0
        self._workers[number] = self._worker(self._workload, number)
        for key in [
            key for key, one in self._requests.items() if one.begun and number in (one.worker, one.helper)
        ]:
            self._fail(now, key)

    def _continue(self, now: float, number: int) -> None:
        self._workers[number].postpone(now - self._stopped.pop(number))
        for chooser in self._choosers:
            chooser.continued(number, now)
        for key in self._held.pop(number, []):
            self._submit(now, key, self._requests[key])
        self._advance(now, number)

    def _arrive(self, now: float, turn: Turn) -> None:
        key = next(self._keys)
        work = _work(turn.prompt, turn.output_tokens, turn.model)
        wanted = Wanted(key, turn, work, self._workload.streamed)
        chooser = self._chooser_of(key, now)
        worker = chooser.choose(wanted, now)
        helper = chooser.helper(wanted)
        chooser.sent(wanted, worker, now)
        self._requests[key] = Request(now, wanted, worker, chooser, helper=helper)
        self._at(now + self._machine.there, self._begin, key)

    def _chooser_of(self, key: int, now: float) -> Chooser:
        return self._choosers[key % len(self._choosers)]

    def _begin(self, now: float, key: int) -> None:
        request = self._requests[key]
        request.begun = True
        if request.helper is not None:
            work = replace(request.wanted.work, output_tokens=1, held=True)
            self._workers[request.helper].submit(-1 - key, work)
            self._advance(now, request.helper)
        elif request.worker not in self._alive:
            self._fail(now, key)
        elif request.worker in self._stopped:  # the kernel accepts it
            self._held.setdefault(request.worker, []).append(key)
        else:
            self._submit(now, key, request)

    def _computed(self, now: float, key: int) -> None:
        """The KV cache of its prompt is on its way."""
        request = self._requests.get(key)
        if request is not None:
            request.chooser.computed(request.wanted, now)
            if self._workload.streamed:  # its worker answers before it fetches
                self._at(now + self._machine.back, self._responded, request)
            seconds = self._machine.transfer_seconds(request.wanted.work.prompt_tokens)
            self._at(now + seconds, self._received, key)

    def _received(self, now: float, key: int) -> None:
        request = self._requests.get(key)
        if request is not None and request.helper is not None:
            self._workers[request.helper].release(-1 - key)
            request.helper, request.received = None, True
            self._submit(now, key, request)

    def _submit(self, now: float, key: int, request: Request) -> None:
        work = request.wanted.work
        if request.received:
            work = replace(work, received=work.prompt_tokens)
        self._workers[request.worker].submit(key, work)
        request.chooser.arrived(request.wanted, request.worker, now)
        self._advance(now, request.worker)
        if self._workload.streamed and not request.received:
            self._at(now + self._machine.back, self._responded, request)

    def _responded(self, now: float, request: Request) -> None:
        request.chooser.responded(request.wanted, request.worker, now)

    def _first(self, now: float, request: Request) -> None:
        request.chooser.first_token(request.wanted, request.worker, now)

    def _ended(self, now: float, request: Request) -> None:
        request.chooser.ended(request.wanted, request.worker, now)

    def _step(self, now: float, number: int, due: float) -> None:
        if self._due[number] == due and number not in self._stopped:
            self._advance(now, number)

    def _advance(self, now: float, number: int) -> None:
        worker = self._workers[number]
        for token in worker.advance(now):
            if token.key < 0:  # of a prompt that is computed for another worker
                if (known := self._requests.get(-1 - token.key)) is not None:
                    known.cached = token.cached_tokens
                self._at(token.at + self._machine.back, self._computed, -1 - token.key)
                continue
            request = self._requests[token.key]
            if not request.first:
                request.first = token.at + self._machine.back
                request.cached = request.cached if request.received else token.cached_tokens
                self._at(request.first, self._first, request)
            if token.finished:
                self._end(token.key, token.at + self._machine.back)
        due = self._due[number] = worker.next_event(now)
        if due is not None:
            self._at(due, self._step, number, due)

    def _end(self, key: int, ended: float) -> None:
        request = self._requests.pop(key)
        turn, tokens = request.wanted.turn, request.wanted.work.prompt_tokens
        worker = f"w{request.worker}"
        answer = Answer(
            request.at,
            request.first,
            ended,
            worker,
            tokens,
            request.cached,
            request.wanted.turn.output_tokens,
            apart=request.received,
        )
        self.answers.append(answer)
        self._ended_prompts[request.worker] += tokens
        if not self._workload.streamed:
            self._at(ended, self._responded, request)
        self._at(ended, self._ended, request)
        if turn.then is not None:
            self._at(ended + turn.then.at, self._arrive, turn.then)
        self._left -= 1

    def _fail(self, now: float, key: int) -> None:
        """The user gives up: the further turns of the session do not come."""
        request = self._requests.pop(key)
        ended, prompt = now + self._machine.back, request.wanted.work.prompt_tokens
        self.answers.append(Answer(request.at, ended, ended, f"w{request.worker}", prompt, 0, failed=True))
        self._at(ended, self._failed, request)
        self._left -= request.wanted.turn.count

    def _failed(self, now: float, request: Request) -> None:
        request.chooser.failed(request.wanted, request.worker, now)

    def _worker(self, workload: Workload, number: int) -> WorkerModel:
        slow = workload.slowness[number] if workload.slowness else 1.0
        return self._machine.worker(slow, workload.max_lora, workload.kv_blocks)


@lru_cache(maxsize=1024)  # the same for all ways to choose
def _work(prompt: str, output_tokens: int, model: str) -> Work:
    tokens = tokenize(prompt)
    digests = block_digests(model, [*tokens, *echo(prompt, output_tokens)], LIMITS.block_size)
    return Work(len(tokens), output_tokens, digests, None if model == BASE_MODEL else model)
