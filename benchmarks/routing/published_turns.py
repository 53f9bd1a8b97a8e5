"""Prompts in the shape of traffic that others published, made smaller so that the simulated workers can hold it."""

import random
from typing import Final

from benchmarks.routing.turns import Turn, arrivals, first_turn, text

_SCALE: Final = 4
"""Lengths are divided by this: a simulated worker holds 65,536 tokens."""
_HASTE: Final = 16
"""Pauses between the turns of a session are divided by this, so that a run of a minute has sessions."""
_TURNS: Final = (5158, 1301, 459, 200, 117, 55, 27, 26, 9, 49)
"""Sessions of the conversation trace with 1, 2, ... 9 and with 10 or more turns."""


def mooncake(seed: int, *, rate: float = 7.0, seconds: float = 60.0) -> list[Turn]:
    """The conversation trace of Mooncake (Qin et al., FAST 2025), at `rate` requests a second in the long run.

    From Table 2 there: prompts of 12,035 and answers of 343 tokens on average, 40 % of the blocks cached before. Counted in
    the trace itself (kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl; 12,031 requests in 59 minutes):
    prompts are log-normal with a median of 6,909 tokens and a sigma of 1.2, their longest 126,195; the middle half of the
    answers has 156 to 472 tokens; all share their first block of 512 tokens; 61 % share nothing else, the others continue one
    of 7,401 sessions, half of them after two minutes (10 % within 42 s, 10 % after 8 minutes). Arrivals in bins of 3 s have
    a variance of 1.1 times their mean, so nearly those of a Poisson process.

    Here lengths are a quarter and pauses a sixteenth of these.
    """
    rng = random.Random(f"mooncake {seed}")
    mean_turns = sum((number + 1) * count for number, count in enumerate(_TURNS)) / sum(_TURNS)
    beginning, begun = text(f"mooncake/{seed}", 512 // _SCALE), list[Turn]()
    for at in arrivals(rng, rate / mean_turns, seconds):
        prompt, planned = beginning, []
        for number in range(rng.choices(range(1, len(_TURNS) + 1), _TURNS)[0]):
            own = rng.lognormvariate(8.65, 1.2) if number == 0 else rng.lognormvariate(7.0, 1.2)
            prompt += text(f"c{len(begun)}.{number}/{seed}", int(min(120_000, max(400, own))) // _SCALE)
            output = max(1, int(min(2000.0, max(4.0, rng.gauss(335, 215)))) // _SCALE)
            pause = min(640.0, rng.lognormvariate(4.8, 1.0)) / _HASTE
            planned.append((pause if number else at, prompt, output))
            prompt += prompt[: 4 * output]  # the simulator answers with the beginning of the prompt
        begun.append(first_turn(planned))
    return begun


def tenants(seed: int, *, rate: float = 9.0, seconds: float = 40.0) -> list[Turn]:
    """The benchmark of llm-d's "KV-Cache Wins You Can See" (2025-09-24, appendix A.2): each of 150 customers has a context of
    6,000 tokens and five users who ask 1,200 tokens; prefixes and questions fill 73 % of all caches, and the rate grows to
    the highest.

    Here 20 customers fill as much of five workers' caches, and the rate grows from an eighth of `rate` to `rate`.
    """
    rng = random.Random(f"tenants {seed}")
    turns = list[Turn]()
    for at in arrivals(rng, rate, seconds):
        if rng.random() > 0.125 + 0.875 * at / seconds:
            continue
        customer = text(f"customer {rng.randrange(20)}/{seed}", 6000)
        turns.append(Turn(at, customer + text(f"q{len(turns)}/{seed}", 1200), 100))
    return turns
