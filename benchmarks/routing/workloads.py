"""The workloads: prompts and their arrival times. The same seed gives the same prompts in virtual and in real time.

A token is four characters without a blank, because the picker, which has no tokenizer, counts so, and the simulator too.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

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


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a worker `at` seconds after the start.

    join: it comes; one whose first event this is was not there before. kill: it ends at once, and all requests there fail;
    pickers hear of it at once, as from the registry's watch. drain: it gets no new requests, and those that it has end.
    stop, continue: SIGSTOP and SIGCONT; meanwhile it computes nothing and has no page, and nobody says so.
    """

    at: float
    worker: int
    what: Literal["join", "kill", "drain", "stop", "continue"]


@dataclass(frozen=True, slots=True)
class Workload:
    """`streamed`: response headers come before the first token, else with the last. `kv_usage`: what the page of each
    worker says of its cache before anything is sent; empty: nothing is used. `pickers`: requests go to them in turn.
    `slowness`: by worker, how many times longer each step takes; empty: all are alike. `max_lora`: adapters that a worker
    holds at a time; 0: none is used.
    """

    turns: Callable[[int], list[Turn]]
    streamed: bool = True
    kv_usage: tuple[float, ...] = ()
    pickers: int = 1
    slowness: tuple[float, ...] = ()
    workers: int = 5
    events: tuple[Event, ...] = ()
    max_lora: int = 0

    def there_at_the_start(self) -> list[int]:
        """The workers whose first event is not their joining."""
        firsts: dict[int, Event] = {}
        for event in sorted(self.events, key=lambda event: event.at):
            firsts.setdefault(event.worker, event)
        joining = {number for number, event in firsts.items() if event.what == "join"}
        return [number for number in range(self.workers) if number not in joining]


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
    for at in _arrivals(rng, rate, seconds):
        number = rng.choices(range(groups), weights)[0] if skew else rng.randrange(groups)
        group = _text(f"g{number}/{seed}", beginning)
        own = _text(f"u{len(turns)}/{seed}", max(16, int(rng.gauss(600, 120))))
        turns.append(Turn(at, group + own, rng.randint(50, 100)))
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


def sessions(
    seed: int, *, rate: float = 3.0, seconds: float = 40.0, think: float = 2.0, system: int = 1000
) -> list[Turn]:
    """Conversations of 3 to 7 turns that grow: one system prompt for all, then 800 tokens, and 400 more each turn."""
    rng = random.Random(f"sessions {seed}")
    begun = list[Turn]()
    for at in _arrivals(rng, rate, seconds):
        prompt, planned = _text(f"system/{seed}", system), []
        for number in range(rng.randint(3, 7)):
            prompt += _text(f"s{len(begun)}.{number}/{seed}", 400 if number else 800)
            output = rng.randint(60, 140)
            planned.append((rng.expovariate(1 / think) if number else at, prompt, output))
            prompt += prompt[: 4 * output]  # the simulator answers with the beginning of the prompt
        turn = None
        for pause, text, output in reversed(planned):
            turn = Turn(pause, text, output, turn)
        assert turn is not None
        begun.append(turn)
    return begun


def long_tail(
    seed: int, *, rate: float = 14.0, seconds: float = 40.0, share: float = 0.05, long: int = 30_000
) -> list[Turn]:
    """Short prompts of many lengths, and a few that are fifty times as long; hardly anything is shared."""
    rng = random.Random(f"long tail {seed}")
    turns = list[Turn]()
    for at in _arrivals(rng, rate, seconds):
        short = min(4000, max(32, int(rng.lognormvariate(6.2, 0.9))))
        tokens = long if rng.random() < share else short
        prompt = _text("hello", 64) + _text(f"m{len(turns)}/{seed}", tokens)
        turns.append(Turn(at, prompt, rng.randint(50, 100)))
    return turns


def _arrivals(rng: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """Poisson arrivals at `rate` a second. Drawn one by one: the caller draws from the same `rng` in between."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


@lru_cache(maxsize=4096)
def _text(name: str, tokens: int) -> str:
    return "".join(random.Random(name).choices(_LETTERS, k=4 * tokens))


WORKLOADS: Final[Mapping[str, Workload]] = {
    "shared, streamed": Workload(shared),
    "shared, not streamed": Workload(shared, streamed=False),
    "shared, Zipf": Workload(lambda seed: shared(seed, skew=1.0)),
    "growing sessions": Workload(sessions),
    "growing sessions, two pickers": Workload(sessions, pickers=2),
    "shared, two pickers": Workload(shared, pickers=2),
    "shared, one at half speed": Workload(lambda seed: shared(seed, rate=12.0), slowness=(1, 1, 1, 1, 2)),
    "long tail": Workload(long_tail),
    "60 at once, same": Workload(lambda seed: burst(seed, same=True)),
    "60 at once, distinct": Workload(lambda seed: burst(seed, same=False)),
    "300 at once, near ties": Workload(
        lambda seed: burst(seed, count=300, same=False, beginning=100, apart=0.0001),
        kv_usage=(0.05, 0.10, 0.15),
        workers=3,
    ),
}
