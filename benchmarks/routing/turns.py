"""Prompts and their arrival times. The same seed gives the same prompts in virtual and in real time.

A token is four characters without a blank, because the picker, which has no tokenizer, counts so, and the simulator too.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

BASE_MODEL: Final = "m"
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, `at` seconds after the start, or after the end of the turn whose `then` it is.

    `model`: an adapter's name, or BASE_MODEL.
    """

    at: float
    prompt: str
    output_tokens: int
    then: "Turn | None" = None
    model: str = BASE_MODEL

    @property
    def count(self) -> int:
        """Turns of the session from here on."""
        return 1 + (self.then.count if self.then is not None else 0)


def shared(
    seed: int,
    *,
    rate: float = 14.0,
    seconds: float = 40.0,
    groups: int = 12,
    beginning: int = 6000,
    skew: float = 0.0,
) -> list[Turn]:
    """Poisson arrivals: a system prompt that many users share, then about 600 tokens of the user's own.

    `skew`: the exponent of Zipf's law by which groups are used; 0: all equally often.
    """
    rng = random.Random(f"shared {seed}")
    weights = [1.0 / (rank + 1) ** skew for rank in range(groups)]
    turns = list[Turn]()
    for at in arrivals(rng, rate, seconds):
        number = rng.choices(range(groups), weights)[0] if skew else rng.randrange(groups)
        group = text(f"g{number}/{seed}", beginning)
        own = text(f"u{len(turns)}/{seed}", max(16, int(rng.gauss(600, 120))))
        turns.append(Turn(at, group + own, rng.randint(50, 100)))
    return turns


def burst(
    seed: int, *, count: int = 60, same: bool, beginning: int = 6000, apart: float = 0.0005
) -> list[Turn]:
    """All at once, with one long prefix for all or with one each."""
    turns = []
    for number in range(count):
        prompt = text(f"{'all' if same else number}/{seed}", beginning) + text(f"t{number}/{seed}", 100)
        turns.append(Turn(0.5 + number * apart, prompt, 40))
    return turns


def first_turn(planned: Sequence[tuple[float, str, int]]) -> Turn:
    """Returns a session. `planned`: for each of its turns `at`, the prompt and the tokens of the answer."""
    then: Turn | None = None
    for at, prompt, output in reversed(planned[1:]):
        then = Turn(at, prompt, output, then)
    return Turn(*planned[0], then)


def sessions(
    seed: int, *, rate: float = 3.0, seconds: float = 40.0, think: float = 2.0, system: int = 1000
) -> list[Turn]:
    """Conversations of 3 to 7 turns that grow: one system prompt for all, then 800 tokens, and 400 more each turn."""
    rng = random.Random(f"sessions {seed}")
    begun = list[Turn]()
    for at in arrivals(rng, rate, seconds):
        prompt, planned = text(f"system/{seed}", system), []
        for number in range(rng.randint(3, 7)):
            prompt += text(f"s{len(begun)}.{number}/{seed}", 400 if number else 800)
            output = rng.randint(60, 140)
            planned.append((rng.expovariate(1 / think) if number else at, prompt, output))
            prompt += prompt[: 4 * output]  # the simulator answers with the beginning of the prompt
        begun.append(first_turn(planned))
    return begun


def long_tail(
    seed: int, *, rate: float = 10.0, seconds: float = 40.0, share: float = 0.05, long: int = 30_000
) -> list[Turn]:
    """Short prompts of many lengths, and a few that are fifty times as long; hardly anything is shared. Five workers compute
    some 12 of these a second.
    """
    rng = random.Random(f"long tail {seed}")
    turns = list[Turn]()
    for at in arrivals(rng, rate, seconds):
        short = min(4000, max(32, int(rng.lognormvariate(6.2, 0.9))))
        tokens = long if rng.random() < share else short
        prompt = text("hello", 64) + text(f"m{len(turns)}/{seed}", tokens)
        turns.append(Turn(at, prompt, rng.randint(50, 100)))
    return turns


def adapted(
    seed: int, *, rate: float = 12.0, seconds: float = 40.0, adapters: int = 12, system: int = 1000
) -> list[Turn]:
    """Requests for LoRA adapters, used by Zipf's law, each with a system prompt of its own; one in eight for the base model."""
    rng = random.Random(f"adapted {seed}")
    names = [f"adapter-{number}" for number in range(adapters)]
    weights = [1.0 / (rank + 1) for rank in range(adapters)]
    turns = list[Turn]()
    for at in arrivals(rng, rate, seconds):
        name = BASE_MODEL if rng.random() < 0.125 else rng.choices(names, weights)[0]
        prompt = text(f"{name}/{seed}", system) + text(
            f"a{len(turns)}/{seed}", max(16, int(rng.gauss(500, 150)))
        )
        turns.append(Turn(at, prompt, rng.randint(50, 100), model=name))
    return turns


def fan_out(
    seed: int,
    *,
    rate: float = 0.25,
    seconds: float = 40.0,
    beginning: int = 8000,
    siblings: tuple[int, int] = (8, 16),
) -> list[Turn]:
    """Code generation: 8 to 16 attempts at one task at once, each with the whole context; once the last attempt of them would
    be ready, as many again, over the same context with what was found. `rate`: tasks a second.
    """
    rng = random.Random(f"fan-out {seed}")
    turns = list[Turn]()
    for task, begun in enumerate(arrivals(rng, rate, seconds)):
        context, at = text(f"f{task}/{seed}", beginning), begun
        for attempt in range(2):
            for number in range(rng.randint(*siblings)):
                own = text(f"f{task}.{attempt}.{number}/{seed}", 150)
                turns.append(Turn(at + rng.uniform(0.0, 0.05), context + own, rng.randint(80, 160)))
            context += text(f"f{task}.{attempt}/{seed}", 600)
            at += 12.0
    return sorted(turns, key=lambda turn: turn.at)


def arrivals(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """Poisson arrivals at `rate` a second. Drawn one by one: the caller draws from the same `rng` in between."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


@lru_cache(maxsize=2048)
def text(name: str, tokens: int) -> str:
    return "".join(random.Random(name).choices(_LETTERS, k=4 * tokens))
