"""Models vLLM's scheduler step by step: continuous batching, chunked prefill, preemption. Time is passed in, in seconds.

A step computes tokens for every sequence of the batch: the uncached rest of a prompt, in chunks that fit the token budget,
or one output token. A sequence with nothing left to compute emits its next token when the step ends.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, Protocol

from examples.simulator.adapters import AdapterSlots
from examples.simulator.kv_cache import KVCache

_CATCH_UP_STEPS = 64
"""Steps that one call of `advance` may take, so that a process that lags behind its clock still serves its sockets."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The machine's capacity and speed, named as vLLM's options where it has one. Defaults: a small model, one GPU."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_blocks: int = 4096
    max_lora: int = 4
    adapter_load_seconds: float = 0.5
    step_seconds: float = 0.010
    sequence_seconds: float = 0.0005
    token_seconds: float = 0.0001

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_lora", "adapter_load_seconds", "sequence_seconds", "token_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.step_seconds <= 0:
            raise ValueError(f"step_seconds must be more than 0, not {self.step_seconds}")

    @property
    def kv_tokens(self) -> int:
        """The longest prompt and answer together that the KV memory holds."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class Work:
    """One request. `digests`: one for each full block of prompt and output, in order. `tokens`, `salt`: what they are made of.

    `received`: tokens of the prompt whose KV cache came from another worker. `held`: its blocks stay after its end, until `release`.
    """

    prompt_tokens: int
    output_tokens: int
    digests: tuple[bytes, ...] = ()
    adapter: str | None = None
    tokens: Sequence[str] = ()
    salt: str = ""
    received: int = 0
    held: bool = False


class CacheListener(Protocol):
    """Hears what enters and leaves the prefix cache."""

    def stored(self, work: Work, begin: int, end: int) -> None:
        """These blocks of a request are new in it."""

    def removed(self, digest: bytes) -> None:
        """A block was evicted."""


class Emitted(NamedTuple):
    """One output token of request `key`. `cached_tokens`: tokens of the prompt that the prefix cache held."""

    key: int
    at: float
    cached_tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Load:
    """What vLLM's gauges show at one moment. `held_blocks`: of requests that ended, for another worker."""

    running: int
    waiting: int
    kv_usage: float
    loaded_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]
    held_blocks: int = 0


@dataclass(slots=True)
class Totals:
    """Counters since the start, in tokens unless the name says requests."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt: int = 0
    generated: int = 0
    preempted_requests: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    expired_requests: int = 0
    failed_transfers: int = 0


@dataclass(slots=True, eq=False)
class _Sequence:
    key: int
    work: Work
    emitted: int = 0
    computed: int = 0
    hashed: int = 0  # its blocks are work.digests[:hashed] and ...
    private: int = 0  # ... these, not full yet
    cached_tokens: int | None = None
    preempted: bool = False

    @property
    def num_tokens(self) -> int:
        return self.work.prompt_tokens + self.emitted

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.computed


@dataclass(frozen=True, slots=True)
class _Step:
    ends_at: float
    shares: tuple[tuple[_Sequence, int], ...]


@dataclass(slots=True)
class _Plan:
    budget: int
    shares: list[tuple[_Sequence, int]] = field(default_factory=list)

    def add(self, sequence: _Sequence) -> None:
        tokens = min(sequence.num_uncomputed, self.budget)
        self.budget -= tokens
        self.shares.append((sequence, tokens))


class SchedulerModel:
    """Requests wait, run in one batch, share the KV cache, and finish. Not thread-safe."""

    def __init__(self, limits: Limits, listener: CacheListener | None = None) -> None:
        self.limits = limits
        self.totals = Totals()
        self._listener = listener
        self._cache = KVCache(limits.num_blocks, *(() if listener is None else (listener.removed,)))
        self._adapters = AdapterSlots(limits.max_lora, limits.adapter_load_seconds)
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: OrderedDict[int, _Sequence] = OrderedDict()
        self._held: OrderedDict[int, _Sequence] = OrderedDict()
        self._step: _Step | None = None

    def fork(self) -> "SchedulerModel":
        """A copy in the same state that goes on by itself, to run it ahead; its totals start at 0."""
        copy = SchedulerModel(self.limits)
        copy._cache, copy._adapters = self._cache.fork(), self._adapters.fork()
        copies: dict[int, _Sequence] = {}
        for ours, theirs in (
            (self._waiting, copy._waiting),
            (self._running, copy._running),
            (self._held, copy._held),
        ):
            for key, sequence in ours.items():
                theirs[key] = copies[key] = replace(sequence)
        if self._step is not None:
            shares = [(copies.get(one.key) or replace(one), tokens) for one, tokens in self._step.shares]
            copy._step = _Step(self._step.ends_at, tuple(shares))
        return copy

    def submit(self, key: int, work: Work) -> None:
        """Enqueue a request. ValueError for one that can never run."""
        if work.prompt_tokens < 1 or work.output_tokens < 1:
            raise ValueError(f"a request needs a token to read and one to write, got {work}")
        if work.prompt_tokens + work.output_tokens > self.limits.kv_tokens:
            raise ValueError(
                f"{work.prompt_tokens + work.output_tokens} tokens exceed {self.limits.kv_tokens} of KV memory"
            )
        if work.adapter is not None and not self.limits.max_lora:
            raise ValueError(f"adapter {work.adapter!r} cannot be loaded: max_lora is 0")
        self._waiting[key] = _Sequence(key, work)

    def abort(self, key: int) -> None:
        """Drop the request of a client that disconnected; of one that has finished, no more than the blocks that it holds."""
        if self._waiting.pop(key, None) is None:
            sequence = self._running.get(key)
            if sequence is None:
                self.release(key)
                return
            self._free(sequence)
        self.totals.aborted_requests += 1

    def release(self, key: int) -> None:
        """Free the blocks that a request holds after its end."""
        if (sequence := self._held.pop(key, None)) is not None:
            self._release_blocks(sequence)

    def advance(self, now: float) -> list[Emitted]:
        """Complete the steps that end by `now`; the tokens that they emit."""
        emitted: list[Emitted] = []
        start = now
        for _ in range(_CATCH_UP_STEPS):
            if self._step is not None:
                if self._step.ends_at > now:
                    break
                start = self._step.ends_at
                emitted.extend(self._end(self._step))
            # it may have idled until an adapter was loaded
            self._step = self._begin(start) or self._begin(now)
            if self._step is None:
                break
        return emitted

    def skip_decodes(self, until: float) -> None:
        """Take the steps that end by `until` and in which every request only emits a token that is neither its first nor its
        last. Nobody gets these tokens. For a copy that runs ahead: it comes to the same state in a fraction of the time.
        """
        step, running = self._step, len(self._running)
        if step is None or self._waiting or not running or len(step.shares) != running:
            return
        seconds = self._seconds(running, running)
        steps = int((until - step.ends_at) / seconds)
        for sequence, tokens in step.shares:
            if tokens != 1 or sequence.emitted == 0 or sequence.num_uncomputed != 1:
                return
            steps = min(steps, sequence.work.output_tokens - sequence.emitted - 1)
        growth = [self._blocks(one.num_tokens + steps) - one.hashed - one.private for one, _ in step.shares]
        if steps < 1 or not self._cache.allocate(sum(growth)):
            return
        for (sequence, _), blocks in zip(step.shares, growth, strict=True):
            sequence.private += blocks
            sequence.emitted += steps
            sequence.computed += steps
            self._publish(sequence)
            self.totals.generated += steps
        self._step = _Step(step.ends_at + steps * seconds, step.shares)

    def next_event(self, now: float) -> float | None:
        """When to call `advance` again; None: not before the next `submit`."""
        if self._step is not None:
            return self._step.ends_at
        return self._adapters.next_ready(now) if self._waiting else None

    def postpone(self, seconds: float) -> None:
        """It stood still for so long, as after SIGSTOP: all that it does ends later."""
        if self._step is not None:
            self._step = replace(self._step, ends_at=self._step.ends_at + seconds)
        self._adapters.postpone(seconds)

    def forget_cache(self) -> None:
        """The prefix cache is emptied, and no event says so."""
        self._cache.forget()

    def cached_blocks(self, digests: Sequence[bytes]) -> int:
        """How many of these, from the first on, a request could reuse."""
        return self._cache.match(digests)

    def load(self, now: float) -> Load:
        waiting = {s.work.adapter for s in self._waiting.values() if s.work.adapter is not None}
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=self._cache.usage,
            loaded_adapters=self._adapters.loaded(now),
            waiting_adapters=tuple(sorted(waiting)),
            held_blocks=sum(one.hashed + one.private for one in self._held.values()),
        )

    def _begin(self, start: float) -> _Step | None:
        plan = _Plan(self.limits.max_num_batched_tokens)
        for sequence in tuple(self._running.values()):
            if plan.budget and sequence.key in self._running and self._allocate(sequence):
                plan.add(sequence)
        self._admit(plan, start)
        if not plan.shares:
            return None
        tokens = self.limits.max_num_batched_tokens - plan.budget
        return _Step(start + self._seconds(len(plan.shares), tokens), tuple(plan.shares))

    def _seconds(self, sequences: int, tokens: int) -> float:
        """How long such a step takes."""
        limits = self.limits
        return limits.step_seconds + limits.sequence_seconds * sequences + limits.token_seconds * tokens

    def _allocate(self, sequence: _Sequence) -> bool:
        """Allocate blocks for its next tokens. If there are none, preempt the youngest sequence, which is recomputed
        later, like vLLM's V1 scheduler.
        """
        needed = self._blocks(sequence.num_tokens) - sequence.hashed - sequence.private
        while needed > 0 and not self._cache.allocate(needed):
            youngest = next(reversed(self._running.values()))
            self._preempt(youngest)
            if youngest is sequence:
                return False
        sequence.private += max(needed, 0)
        return True

    def _admit(self, plan: _Plan, now: float) -> None:
        for sequence in tuple(self._waiting.values()):
            if not plan.budget or len(self._running) >= self.limits.max_num_seqs:
                return
            adapter = sequence.work.adapter
            if adapter is not None and not self._adapters.prepare(adapter, now):
                continue  # requests for other adapters may overtake it
            if not self._allocate_prompt(sequence):
                return  # no request overtakes it, or long prompts would starve
            if adapter is not None:
                self._adapters.use(adapter)
            del self._waiting[sequence.key]
            self._running[sequence.key] = sequence
            plan.add(sequence)

    def _allocate_prompt(self, sequence: _Sequence) -> bool:
        digests, size = sequence.work.digests, self.limits.block_size
        # one token must be computed, to have logits for the next one
        reusable = (sequence.num_tokens - 1) // size
        hits = self._cache.match(islice(digests, reusable))
        if not self._cache.admit(digests[:hits], self._blocks(sequence.num_tokens) - hits):
            return False
        sequence.hashed, sequence.private = hits, self._blocks(sequence.num_tokens) - hits
        sequence.computed = hits * size
        first_time = sequence.cached_tokens is None
        if first_time:
            self.totals.prefix_queries += sequence.work.prompt_tokens
            self.totals.prefix_hits += sequence.computed
        if not sequence.preempted:
            received = min(sequence.work.received, sequence.num_tokens - 1)
            sequence.computed = max(sequence.computed, received)
        if first_time:
            sequence.cached_tokens = sequence.computed
        return True

    def _end(self, step: _Step) -> list[Emitted]:
        emitted = []
        for sequence, tokens in step.shares:
            if sequence.key not in self._running:
                continue  # aborted or preempted meanwhile
            sequence.computed += tokens
            self._publish(sequence)
            if not sequence.num_uncomputed:
                emitted.append(self._emit(sequence, step.ends_at))
        return emitted

    def _publish(self, sequence: _Sequence) -> None:
        full = sequence.work.digests[sequence.hashed : sequence.computed // self.limits.block_size]
        begin = sequence.hashed
        for at, digest in enumerate(full, begin):
            if not self._cache.publish(digest):
                self._tell_stored(sequence.work, begin, at)
                begin = at + 1
        sequence.hashed += len(full)
        self._tell_stored(sequence.work, begin, sequence.hashed)
        sequence.private -= len(full)

    def _tell_stored(self, work: Work, begin: int, end: int) -> None:
        if self._listener is not None and begin < end:
            self._listener.stored(work, begin, end)

    def _emit(self, sequence: _Sequence, at: float) -> Emitted:
        sequence.emitted += 1
        self.totals.generated += 1
        if sequence.emitted == 1:
            self.totals.prompt += sequence.work.prompt_tokens
        finished = sequence.emitted == sequence.work.output_tokens
        if finished:
            self.totals.finished_requests += 1
            if sequence.work.held:
                self._held[sequence.key] = sequence
                self._stop_running(sequence)
            else:
                self._free(sequence)
        return Emitted(sequence.key, at, sequence.cached_tokens or 0, finished)

    def _preempt(self, sequence: _Sequence) -> None:
        self._free(sequence)
        self.totals.preempted_requests += 1
        sequence.preempted = True
        sequence.computed = sequence.hashed = sequence.private = 0
        self._waiting[sequence.key] = sequence
        self._waiting.move_to_end(sequence.key, last=False)

    def _free(self, sequence: _Sequence) -> None:
        self._stop_running(sequence)
        self._release_blocks(sequence)

    def _stop_running(self, sequence: _Sequence) -> None:
        del self._running[sequence.key]
        if sequence.work.adapter is not None:
            self._adapters.release(sequence.work.adapter)

    def _release_blocks(self, sequence: _Sequence) -> None:
        self._cache.release(sequence.work.digests[: sequence.hashed], sequence.private)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)
