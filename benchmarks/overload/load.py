"""What users ask in an overload: three priorities, two tenants, ten times what the pool can serve (pure).

Interactive users ask long questions and want short answers soon. All others are sent as fast as they come.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from examples.simulator.scheduler_model import Limits, SchedulerModel, Work

WORKERS: Final = 3
CONCURRENCY: Final = 8
"""Requests at a worker that saturate it, as the configurations of `benchmarks.overload.arms` say."""
OVERLOAD: Final = 10.0
MACHINE: Final = Limits(max_num_seqs=2 * CONCURRENCY, step_seconds=0.025, token_seconds=0.0002)
PRIORITIES: Final[Mapping[str, int]] = {"interactive": 10, "standard": 0, "batch": -1}
"""By the objective that the requests name."""
_LETTERS: Final = 4  # of a token
_PROMPT: Final = "abcdefghijklmnopqrstuvwxyz"
_MEASURED: Final = 60.0
"""Virtual seconds over which the capacity is counted."""


@dataclass(frozen=True, slots=True)
class Source:
    """Requests of one tenant at one priority. `times`: how many come, where 1 is what the whole pool can serve."""

    objective: str
    tenant: str
    times: float
    prompt_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        return f"{self.objective}, {self.tenant}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, `at` seconds after the start."""

    at: float
    source: Source
    prompt: str


INTERACTIVE: Final = (
    Source("interactive", "red", 0.15, 2000, 32),
    Source("interactive", "blue", 0.15, 2000, 32),
)
SOURCES: Final = (
    *INTERACTIVE,
    Source("standard", "red", 4.0, 100, 128),
    Source("standard", "blue", 1.6, 100, 128),
    Source("batch", "red", 4.1, 100, 128),
)
"""Ten times the capacity together. The two tenants of `standard` both ask for more than their half of what is left for it."""


def capacity(tokens: Source, limits: Limits = MACHINE) -> float:
    """Requests a second of such a kind that a pool serves which has CONCURRENCY of them at each worker, all the time."""
    model, keys = SchedulerModel(limits), count()
    work = Work(tokens.prompt_tokens, tokens.output_tokens)
    for _ in range(CONCURRENCY):
        model.submit(next(keys), work)
    now = 0.0
    while now < _MEASURED:
        ended = sum(token.finished for token in model.advance(now))
        for _ in range(ended):
            model.submit(next(keys), work)
        now = model.next_event(now) or now
    return WORKERS * model.totals.finished_requests / now


def arrivals(sources: Sequence[Source], capacity: float, seconds: float, seed: int) -> list[Arrival]:
    """In order. The gaps are exponential, and no two prompts begin alike: no cache helps."""
    chance = random.Random(seed)
    found: list[Arrival] = []
    for source in sources:
        at = chance.expovariate(source.times * capacity)
        while at < seconds:
            found.append(Arrival(at, source, _prompt(source.prompt_tokens, chance)))
            at += chance.expovariate(source.times * capacity)
    return sorted(found, key=lambda one: one.at)


def _prompt(tokens: int, chance: random.Random) -> str:
    unique = "".join(chance.choices(_PROMPT, k=4 * _LETTERS))
    return (unique + "word" * tokens)[: tokens * _LETTERS]
