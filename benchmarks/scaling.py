"""`python -m benchmarks.scaling`: what a pick costs a picker of one process and one of two, all processes together.

What the load takes is left out: only the processor time of the picker counts. Two processors pick as many times faster than one
as twice the cost of one process is more than that of two, if connections are spread evenly; the shares of the processes say
whether they are. All pickers have their turn in each round, so that what else the machine does meets them all. The Go picker is
one process that uses all processors.
"""

import argparse
import asyncio
import contextlib
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.picking import pickers
from benchmarks.picking.figures import KIBIBYTE
from benchmarks.picking.load_generator import Load
from benchmarks.picking.pickers import OURS, SELDOM, Picker
from benchmarks.picking.rounds import Generator, generator
from benchmarks.process_usage import processor_seconds

_ENDPOINTS: Final = 10
_CONNECTIONS: Final = 8
_MANY: Final = 4
"""Requests at once on each connection."""


class _Measured:
    """A picker, and the processor time of all its processes."""

    def __init__(self, picker: Picker, processes: int) -> None:
        self.picker = picker
        children = Path(f"/proc/{picker.pid}/task/{picker.pid}/children").read_text().split()
        self.pids = [picker.pid] if processes == 1 else [int(child) for child in children]
        self.costs: dict[int, list[float]] = {}
        self.shares: list[float] = []

    def used(self) -> list[float]:
        return [processor_seconds(pid) for pid in self.pids]

    async def turn(self, made: Generator, load: Load) -> None:
        before = self.used()
        summary = await made.make(replace(load, port=self.picker.port))
        assert not summary["bad"], summary["said"]
        spent = [after - first for first, after in zip(before, self.used(), strict=True)]
        self.costs.setdefault(load.body, []).append(sum(spent) / summary["done"] * 1e6)
        self.shares.append(min(spent) / max(spent))


async def main(rounds: int, seconds: float, kind: pickers.Kind, most: int, go: Path | None) -> None:
    load_core, _ = pickers.cores()
    async with contextlib.AsyncExitStack() as stack:
        ports = await stack.enter_async_context(pickers.workers(_ENDPOINTS))
        made = await stack.enter_async_context(generator(load_core))
        measured = []
        for processes in (1, most):
            flags = (*SELDOM, f"--processes={processes}")
            picker = await stack.enter_async_context(pickers.picker(kind, ports, None, flags))
            await asyncio.sleep(3.0)  # until each process is there
            measured.append(_Measured(picker, processes))
        if go is not None:
            picker = await stack.enter_async_context(pickers.picker(pickers.go_picker(go), ports, None))
            measured.append(_Measured(picker, 1))
        for body in (KIBIBYTE, 64 * KIBIBYTE):
            load = Load(0, "streams", body, connections=_CONNECTIONS, many=_MANY, seconds=seconds)
            for number in range(rounds):
                for one in measured if number % 2 else reversed(measured):
                    await one.turn(made, load)
            alone, several, *others = (statistics.median(each.costs[body]) for each in measured)
            print(
                f"bodies of {body // KIBIBYTE} KiB: {alone:.0f} µs of processor time a pick by one process, {several:.0f} by {most}; "
                f"{most} processors pick {most * alone / several:.2f} times as fast"
                + "".join(f"; the Go picker {of_go:.0f}" for of_go in others)
            )
        print(
            f"the least busy process takes {statistics.median(measured[1].shares):.0%} of what the busiest takes"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--compiled", action="store_true", help="the picker compiled by mypyc")
    parser.add_argument("--go-picker", type=Path, metavar="FILE", help="measure this Go picker's binary also")
    given = parser.parse_args()
    chosen = pickers.compiled_picker() if given.compiled else OURS
    asyncio.run(main(given.rounds, given.seconds, chosen, given.processes, given.go_picker))
