"""The workloads: prompts and their arrival times. The same seed gives the same prompts in virtual and in real time.

A token is four characters without a blank, because the picker, which has no tokenizer, counts so, and the simulator too.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, `at` seconds after the start."""

    at: float
    prompt: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`streamed`: response headers come before the first token, else with the last. `kv_usage`: what the page of each
    worker says of its cache before anything is sent; empty: nothing is used.
    """

    turns: Callable[[int], list[Turn]]
    streamed: bool = True
    kv_usage: tuple[float, ...] = ()


def shared(
    seed: int, *, rate: float = 14.0, seconds: float = 40.0, groups: int = 12, beginning: int = 6000
) -> list[Turn]:
    """Poisson arrivals: a system prompt that many users share, then about 600 tokens of the user's own."""
    rng = random.Random(f"shared {seed}")
    turns = list[Turn]()
    at = rng.expovariate(rate)
    while at < seconds:
        group = _text(f"g{rng.randrange(groups)}/{seed}", beginning)
        own = _text(f"u{len(turns)}/{seed}", max(16, int(rng.gauss(600, 120))))
        turns.append(Turn(at, group + own, rng.randint(50, 100)))
        at += rng.expovariate(rate)
    return turns


def burst(
    seed: int, *, count: int = 60, same: bool, beginning: int = 6000, apart: float = 0.0005
) -> list[Turn]:
    """All at once, with one long prefix for all or with one each."""
    turns = []
    for number in range(count):
        prompt = _text(f"{'all' if same else number}/{seed}", beginning) + _text(f"t{number}/{seed}", 100)
        turns.append(Turn(0.5 + number * apart, prompt, 40))
    return turns


@lru_cache(maxsize=4096)
def _text(name: str, tokens: int) -> str:
    return "".join(random.Random(name).choices(_LETTERS, k=4 * tokens))


WORKLOADS: Final[Mapping[str, Workload]] = {
    "shared, streamed": Workload(shared),
    "shared, not streamed": Workload(shared, streamed=False),
    "60 at once, same": Workload(lambda seed: burst(seed, same=True)),
    "60 at once, distinct": Workload(lambda seed: burst(seed, same=False)),
    "300 at once, near ties": Workload(
        lambda seed: burst(seed, count=300, same=False, beginning=100, apart=0.0001),
        kv_usage=(0.05, 0.10, 0.15),
    ),
}
