"""Rounds in which each picker has its turn: what one pick costs, by the processor time of the picker's process.

In a round the pickers follow each other on the same load, so that what else the machine does meets all of them; then
the median over the rounds is taken. What a picker does without requests is measured while the others have their turn,
and is not counted as the picks' cost.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.picking.load_generator import Load
from benchmarks.picking.pickers import Picker, cores, started

ROUNDS: Final = 7
SECONDS: Final = 0.5
WARM_UP: Final = 0.2
_APART: Final = 10_000_000
"""No two loads send the same prompt: as many numbers are between their first ones."""


@dataclass(slots=True)
class Cost:
    """Of one kind of request, median over the rounds. `cpu`: µs each; `p50`, `p99`: µs until the picker had answered.

    `idle`: cores that the picker takes when nobody asks it. `bad`: requests that went wrong, in all rounds.
    """

    cpu: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    idle: float = 0.0
    received: float = 0.0
    done: int = 0
    bad: int = 0
    turns: list["Turn"] = field(default_factory=list)

    def settle(self, name: str) -> None:
        """Takes the medians; raises AssertionError if a request failed or none succeeded."""
        assert not any(turn.bad for turn in self.turns), f"{name}: {[turn.said for turn in self.turns]}"
        self.turns = [turn for turn in self.turns if turn.done]  # a slow one may not end any in its time
        assert self.turns, f"{name} answered nothing"
        self.idle = statistics.median(turn.idle for turn in self.turns)
        self.cpu = statistics.median(turn.cpu(self.idle) for turn in self.turns)
        self.p50 = statistics.median(turn.p50 for turn in self.turns)
        self.p99 = statistics.median(turn.p99 for turn in self.turns)
        self.received = statistics.median(turn.received for turn in self.turns)
        self.done = sum(turn.done for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Turn:
    """One picker's turn in one round: times in seconds, latencies in µs."""

    used: float
    took: float
    idle: float
    done: int
    bad: int
    said: str
    p50: float
    p99: float
    received: float

    def cpu(self, idle: float) -> float:
        """µs per request, without the picker's idle processor time."""
        return (self.used - idle * self.took) / self.done * 1e6


class Generator:
    """Runs one load after the other in a separate process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._loads = 0

    async def make(self, load: Load) -> dict[str, float]:
        """Returns the summary of the load; raises AssertionError when the process has ended."""
        self._loads += 1
        numbered = replace(load, first=self._loads * _APART)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(numbered.line.encode())
        line = await self._process.stdout.readline()
        assert line, "the load generator has ended; it says above why"
        summary: dict[str, float] = json.loads(line)
        return summary


@asynccontextmanager
async def generator(core: int | None = None) -> AsyncIterator[Generator]:
    """`core`: None is the core of the load."""
    program = (sys.executable, "-m", "benchmarks.picking.load_generator")
    async with started(program, cores()[0] if core is None else core) as process:
        yield Generator(process)


@dataclass(slots=True)
class _Idle:
    """The processor time that a picker uses between its turns."""

    picker: Picker
    since: float = 0.0
    used: float = 0.0

    def rest(self) -> None:
        """Starts to measure, at the end of a turn."""
        self.since, self.used = time.perf_counter(), self.picker.cpu

    def cores(self) -> float:
        """Returns the cores used between turns; 0 if that time was too short to measure."""
        took = time.perf_counter() - self.since
        return (self.picker.cpu - self.used) / took if took > WARM_UP else 0.0


async def compare(
    pickers: Sequence[Picker],
    load: Load,
    generator: Generator,
    rounds: int = ROUNDS,
) -> dict[str, Cost]:
    """Returns the cost of a request of this load, by picker; the port of the load is replaced by each picker's."""
    costs = {picker.name: Cost() for picker in pickers}
    idle = {picker.name: _Idle(picker) for picker in pickers}
    for picker in pickers:
        await generator.make(replace(load, port=picker.port, seconds=WARM_UP))
        idle[picker.name].rest()
    for number in range(rounds):
        for picker in pickers if number % 2 else reversed(pickers):
            rested = idle[picker.name].cores()
            before, began = picker.cpu, time.perf_counter()
            summary = await generator.make(replace(load, port=picker.port))
            await asyncio.sleep(0.02)  # what is still to be done about the last ones
            used, took = picker.cpu - before, time.perf_counter() - began
            idle[picker.name].rest()
            costs[picker.name].turns.append(_turn(used, took, rested, summary))
    for name, cost in costs.items():
        cost.settle(name)
    return costs


def _turn(used: float, took: float, idle: float, summary: dict[str, float]) -> Turn:
    return Turn(
        used,
        took,
        idle,
        int(summary["done"]),
        int(summary["bad"]),
        str(summary["said"]),
        summary["p50"],
        summary["p99"],
        summary["received"],
    )
