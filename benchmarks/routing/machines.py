"""The kinds of workers that runs in virtual time have: how they compute prompts, what their pages count, and how far away they are."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from examples.simulator.kv_cache import KVCache
from examples.simulator.scheduler_model import Emitted, Limits, Load, SchedulerModel, Totals, Work


class WorkerModel(Protocol):
    """A worker in virtual time; `SchedulerModel` says what each method does."""

    limits: Limits
    totals: Totals

    def fork(self) -> "WorkerModel": ...
    def submit(self, key: int, work: Work) -> None: ...
    def advance(self, now: float) -> list[Emitted]: ...
    def skip_decodes(self, until: float) -> None: ...
    def next_event(self, now: float) -> float | None: ...
    def postpone(self, seconds: float) -> None: ...
    def cached_blocks(self, digests: Sequence[bytes]) -> int: ...
    def load(self, now: float) -> Load: ...
    def release(self, key: int) -> None: ...


@dataclass(slots=True)
class _Running:
    work: Work
    first_at: float
    ends_at: float
    cached_tokens: int
    begun: bool = False


class SideBySide:
    """Computes the prompts of all running requests at once, as llm-d-inference-sim does: the more run, the slower each is.

    `limits.max_num_seqs` run, the others wait. A prompt takes `step_seconds` and `token_seconds` for each token that is not
    cached, and `sequence_seconds` pass between two tokens of an answer; all of them up to `limits_factor` times as long where as
    many run as can, by what runs when the prompt or the answer begins. Its blocks count as cached from then on.
    """

    FACTOR: Final = 2.0

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.totals = Totals()
        self._cache = KVCache(limits.num_blocks)
        self._waiting: OrderedDict[int, Work] = OrderedDict()
        self._running: dict[int, _Running] = {}

    def fork(self) -> "SideBySide":
        copy = SideBySide(self.limits)
        copy._cache = self._cache.fork()
        copy._waiting = self._waiting.copy()
        copy._running = {key: replace(one) for key, one in self._running.items()}
        return copy

    def submit(self, key: int, work: Work) -> None:
        self._waiting[key] = work

    def advance(self, now: float) -> list[Emitted]:
        """The first and the last token of each answer until `now`."""
        emitted: list[Emitted] = []
        while (due := self.next_event(now)) is not None and due <= now:
            for key, one in list(self._running.items()):
                if not one.begun and one.first_at <= due:
                    one.begun = True
                    rest = (one.work.output_tokens - 1) * self.limits.sequence_seconds
                    one.ends_at = one.first_at + rest * self._load()
                    self.totals.prompt += one.work.prompt_tokens
                    last = one.work.output_tokens == 1
                    emitted.append(Emitted(key, one.first_at, one.cached_tokens, last))
                if one.begun and one.ends_at <= due:
                    if one.work.output_tokens > 1:
                        emitted.append(Emitted(key, one.ends_at, one.cached_tokens, finished=True))
                    del self._running[key]
                    self._cache.release(self._blocks(one.work), 0)
            self._admit(due)
        self._admit(now)
        return emitted

    def skip_decodes(self, until: float) -> None:
        pass  # there are none

    def next_event(self, now: float) -> float | None:
        return min(
            (one.ends_at if one.begun else one.first_at for one in self._running.values()), default=None
        )

    def postpone(self, seconds: float) -> None:
        for one in self._running.values():
            one.first_at += seconds
            one.ends_at += seconds

    def cached_blocks(self, digests: Sequence[bytes]) -> int:
        return self._cache.match(digests)

    def release(self, key: int) -> None:
        pass  # it holds nothing for others

    def load(self, now: float) -> Load:
        return Load(len(self._running), len(self._waiting), self._cache.usage, (), ())

    def _load(self) -> float:
        """How many times longer all takes now."""
        most = max(1, self.limits.max_num_seqs - 1)
        return 1.0 + (self.FACTOR - 1.0) * max(0, len(self._running) - 1) / most

    def _blocks(self, work: Work) -> tuple[bytes, ...]:
        return work.digests[: work.prompt_tokens // self.limits.block_size]

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._running) < self.limits.max_num_seqs:
            key, work = next(iter(self._waiting.items()))
            blocks = self._blocks(work)
            hits = self._cache.match(blocks)
            if not self._cache.admit(blocks[:hits], len(blocks) - hits):
                return
            for digest in blocks[hits:]:
                self._cache.publish(digest)
            del self._waiting[key]
            cached = hits * self.limits.block_size
            self.totals.prefix_queries += work.prompt_tokens
            self.totals.prefix_hits += cached
            one = self._running[key] = _Running(work, now, now, cached)
            missing = self.limits.token_seconds * (work.prompt_tokens - cached)
            one.first_at += (self.limits.step_seconds + missing) * self._load()


@dataclass(frozen=True, slots=True)
class Machine:
    """`counts`: when the counter of prompt tokens on its page grows by a prompt. `there`, `back`: seconds from the client through
    the picker to the worker, and from it. `rate`: of requests, as a multiple of the workload's. `transfer`: of the KV cache of a
    prompt, seconds for each, and for each token.
    """

    limits: Limits
    model: Callable[[Limits], WorkerModel] = SchedulerModel
    counts: Literal["first token", "end", "never"] = "first token"
    there: float = 0.003
    back: float = 0.002
    rate: float = 1.0
    transfer: tuple[float, float] = (0.02, 0.00001)

    def transfer_seconds(self, tokens: int) -> float:
        return self.transfer[0] + self.transfer[1] * tokens

    def worker(self, slow: float = 1.0, max_lora: int = 0, kv_blocks: int = 0) -> WorkerModel:
        """One that takes so many times longer."""
        limits = replace(
            self.limits,
            num_blocks=kv_blocks or self.limits.num_blocks,
            max_lora=max_lora,
            step_seconds=self.limits.step_seconds * slow,
            sequence_seconds=self.limits.sequence_seconds * slow,
            token_seconds=self.limits.token_seconds * slow,
        )
        return self.model(limits)


_STEPS: Final = Limits(
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    num_blocks=4096,
    step_seconds=0.020,
    sequence_seconds=0.0005,
    token_seconds=0.0002,
)
OURS: Final = "steps"
MACHINES: Final[Mapping[str, Machine]] = {
    OURS: Machine(_STEPS),
    "side by side": Machine(
        replace(_STEPS, max_num_seqs=8, sequence_seconds=0.020), SideBySide, counts="end", rate=0.75
    ),
    "counter at the end": Machine(_STEPS, counts="end"),
    "no counter": Machine(_STEPS, counts="never"),
    "large batch": Machine(
        replace(_STEPS, max_num_seqs=256, max_num_batched_tokens=16_384, sequence_seconds=0.0001)
    ),
    "slow network": Machine(_STEPS, there=0.150, back=0.100),
}
"""The first is the demo's worker, which all tables without machines have."""
