"""What a feature adds to a pick: a picker that has it beside one that has not, turn by turn, so that the machine's other work
meets both alike.
"""

import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.picking.figures import KIBIBYTE
from benchmarks.picking.load_generator import Load
from benchmarks.picking.pickers import Picker
from benchmarks.picking.rounds import Generator, compare

ROUNDS: Final = 41


async def print_added(without: Picker, others: Sequence[Picker], made: Generator) -> None:
    """Prints for each of `others` the µs of processor time of a pick, those of `without`, and the ratio in percent."""
    load = Load(port=0, kind="streams", body=KIBIBYTE, connections=2, many=16, seconds=0.25)
    for one in others:
        costs = await compare([without, one], load, made, ROUNDS)
        less, more = costs[without.name], costs[one.name]
        ratios = [b.cpu(more.idle) / a.cpu(less.idle) for a, b in zip(less.turns, more.turns, strict=True)]
        low, middle, high = (100 * (ratio - 1) for ratio in statistics.quantiles(ratios, n=4))
        print(
            f"{one.name}: {more.cpu:.0f} µs, {without.name} {less.cpu:.0f} µs; {middle:+.1f} % "
            f"(half of the rounds {low:+.1f} to {high:+.1f} %)",
            flush=True,
        )
